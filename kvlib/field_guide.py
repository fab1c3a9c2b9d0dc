"""From what you see to what to try.

Two questions about each symptom lead to a technique, its page and the number that says whether it
worked. They are answered from a log, a shape or a trace.
"""

from __future__ import annotations

from typing import NamedTuple


class Leaf(NamedTuple):
    """What to try, the page of the book about it, and the number that says whether it worked."""

    technique: str
    page: str
    look_at: str


# What the pages are called, for a picture, which cannot link to them.
TITLES = {
    "03_paged/capacity": "Capacity: the paper's figures, and other traffic",
    "04_engines/admission": "Who may begin, and who gives back?",
    "04_engines/continuous_batching": "Who runs in the next step",
    "04_engines/disaggregation": "Should the card that reads also write?",
    "04_engines/lossy_eviction": "What may a text forget while it is being read?",
    "04_engines/reading_less": "Keep everything, read little: the structures compared",
    "04_engines/routing": "Where the prefix is, or where there is time?",
    "04_engines/sharded_cache": "Which process holds which part of a sequence?",
    "04_engines/smaller_by_precision": "How few bits does a key need?",
    "04_engines/tiers": "Read it back, or compute it again?",
    "05_practice/bottleneck": "Which line of the profile do you work on?",
    "05_practice/load_tests": "How much load can it take?",
    "05_practice/memory_budget": "What is left for the cache?",
    "05_practice/prompts": "In what order should a prompt be written?",
    "05_practice/tuning": "Which knob matters, and will it matter tomorrow?",
}


class Fork(NamedTuple):
    """A question that can be answered from a log, a shape or a trace."""

    question: str
    yes: Leaf
    no: Leaf


class Tree(NamedTuple):
    """What somebody sees, and where to go from there."""

    symptom: str
    question: str
    yes: Fork
    no: Fork


_BITS = Leaf("store it in 8 bits", "04_engines/smaller_by_precision", "perplexity on your text")
_CARDS = Leaf("split heads over cards", "04_engines/sharded_cache", "KV heads per card")
_RULE = Leaf("another admission rule", "04_engines/admission", "used, and computed twice")
_LIMIT = Leaf("raise the limit on requests", "05_practice/tuning", "waiting, beside used")
_FEWER = Leaf("lower the limit on requests", "05_practice/tuning", "waiting, and computed twice")
_ORDER = Leaf("put what is shared first", "05_practice/prompts", "prefix hit rate")
_TIER = "a second tier behind the index"

TREES = {
    "long": Tree(
        "One request does not fit",
        "May the logits change a little?",
        Fork(
            "Would it fit in half the bytes?",
            _BITS,
            Leaf("keep what it attends to", "04_engines/lossy_eviction", "needles asked for late"),
        ),
        Fork(
            "Is there a second card?",
            _CARDS,
            Leaf("a larger card: plan it", "05_practice/memory_budget", "bytes a token"),
        ),
    ),
    "few": Tree(
        "Too few run at a time",
        "Is 90 % used while some wait?",
        Fork(
            "Is much of it promised and empty?",
            Leaf("blocks on demand", "03_paged/capacity", "share of slots used"),
            Leaf(
                "fewer bits, or a card: plan both",
                "05_practice/memory_budget",
                "users, with an interval",
            ),
        ),
        Fork("Do as many run as may run?", _LIMIT, _RULE),
    ),
    "first": Tree(
        "The first token is late",
        "Do most wait before they begin?",
        Fork(
            "Is the hit rate below the most?",
            _ORDER,
            Leaf("more servers, or less load", "05_practice/load_tests", "rate within the target"),
        ),
        Fork(
            "Do prompts share steps with answers?",
            Leaf("larger chunks", "05_practice/tuning", "first token, and longest pause"),
            Leaf("more cards for a prompt", "04_engines/disaggregation", "both latencies"),
        ),
    ),
    "slow": Tree(
        "Tokens come slowly",
        "Does a step read more cache than weights?",
        Fork(
            "May the logits change a little?",
            Leaf("read fewer blocks, or bits", "04_engines/reading_less", "bytes read a step"),
            _CARDS,
        ),
        Fork(
            "Do pauses come with long prompts?",
            Leaf("prompts in chunks", "04_engines/continuous_batching", "longest pause"),
            Leaf("not the cache: profile it", "05_practice/bottleneck", "each part of a step"),
        ),
    ),
    "twice": Tree(
        "Requests lose their memory",
        "Are over 5 % of tokens computed twice?",
        Fork("Is each let in by its prompt alone?", _RULE, _FEWER),
        Fork(
            "Is most of what they lost found again?",
            Leaf("a small watermark", "04_engines/admission", "tokens computed twice"),
            Leaf(_TIER, "04_engines/tiers", "hits of the tier"),
        ),
    ),
    "again": Tree(
        "The same text is computed again",
        "Was it dropped before it came back?",
        Fork(
            "Is copying faster than computing?",
            Leaf(_TIER, "04_engines/tiers", "hits, bytes written"),
            Leaf("nothing: compute it again", "04_engines/admission", "bandwidth of the link"),
        ),
        Fork(
            "Was it computed on another server?",
            Leaf("send it where it was", "04_engines/routing", "hit rate, longest wait"),
            Leaf("the order, then the salts", "05_practice/prompts", "first token that differs"),
        ),
    ),
}


def leaf(symptom: str, first: bool, second: bool) -> Leaf:
    """Returns where two answers lead.

    Example:
        >>> leaf("few", True, True).technique
        'blocks on demand'
    """
    tree = TREES[symptom]
    fork = tree.yes if first else tree.no
    return fork.yes if second else fork.no
