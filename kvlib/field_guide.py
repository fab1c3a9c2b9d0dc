"""From what you see to what to try, and the bounds that decide most claims of speed.

Two questions about each symptom lead to a technique, its page and the number that says whether it
worked. They are answered from a log, a shape or a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple


class Leaf(NamedTuple):
    """What to try, the page of the book about it, and the number that says whether it worked."""

    technique: str
    page: str
    look_at: str


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
            Leaf("blocks on demand", "03_paged/paged_attention", "share of slots used"),
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


def whole_gain(parts: Mapping[str, float], faster: Mapping[str, float]) -> float:
    """Returns how many times as fast a whole is when some of its parts are.

    Args:
        parts: seconds, bytes or any other cost of each part, on one scale.
        faster: how many times as fast a part becomes; `math.inf` for a part that is gone, and a
            part that is not named stays.

    Raises:
        KeyError: a part is made faster that is not there.
        ValueError: a cost is negative or all are 0, or a factor is not above 0.

    This is Amdahl's law.

    Example:
        A quarter of a step made endlessly fast:

        >>> round(whole_gain({"weights": 3.0, "cache": 1.0}, {"cache": inf}), 3)
        1.333
    """
    if unknown := set(faster) - set(parts):
        raise KeyError(f"{sorted(unknown)} are not among the parts {sorted(parts)}")
    before = sum(parts.values())
    if min(parts.values(), default=0.0) < 0 or before <= 0:
        raise ValueError(f"parts cost at least 0, and one of them more, got {dict(parts)}")
    if any(not factor > 0 for factor in faster.values()):
        raise ValueError(f"a factor is above 0, got {dict(faster)}")
    after = sum(cost / faster.get(name, 1.0) for name, cost in parts.items())
    return before / after if after else inf


def least_share(gain: float) -> float:
    """Returns the least share of a whole that a part must have, for the whole to gain so much.

    However fast the part becomes, what is left takes `1 / gain` of the time at least.

    Raises:
        ValueError: the gain is below 1.

    Example:
        >>> round(least_share(4.0), 2)
        0.75
    """
    if not gain >= 1:
        raise ValueError(f"a gain is at least 1, got {gain!r}")
    return 1 - 1 / gain


def highest_rate(curve: Iterable[tuple[float, float]], most: float) -> float | None:
    """Returns the highest rate at which, and below which, a latency is kept; None for none.

    Args:
        curve: pairs of rate and latency, in any order.
        most: the latency that is to be kept.

    Example:
        At a rate of 3 the latency is kept again, by chance: it was not at 2.

        >>> highest_rate([(1, 0.2), (2, 0.9), (3, 0.4)], most=0.5)
        1
    """
    kept = None
    for rate, latency in sorted(curve):
        if latency > most:
            break
        kept = rate
    return kept
