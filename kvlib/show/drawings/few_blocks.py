"""Which blocks a query reads: what each could score, what it does score, and where attention lies.

Scores and bounds are those of a real model on a real text; `measure/query_blocks.py` recorded them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from math import exp, fsum
from typing import NamedTuple

from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, Canvas

HEADS = {
    "near": "looks at its neighbours",
    "first": "looks at the first token",
    "far": "looks far back",
}
RULES = {"bound": "highest bound", "average": "highest average", "newest": "newest"}
BESIDE = {"bound": 1, "average": 0.5, "newest": 0}
QUERIES = (97, 119, 127)
_TOP, _LOW, _SHARE_LOW, _SHARE_HIGH = 70, 170, 262, 64


@cache
def recorded() -> dict:
    """Returns the record: tokens, heads and for each head and query scores and bounds."""
    text = (files("kvlib") / "data" / "query_blocks.json").read_text(encoding="utf-8")
    return json.loads(text)


class Block(NamedTuple):
    """One block as a query sees it; scores are scaled by 1 / sqrt(head_dim).

    Attributes:
        bound: what none of its keys scores above.
        average: the mean score, which is the score of the mean key.
        best: the highest score.
        share: of the query's attention.
        tokens: how many it holds.
    """

    bound: float
    average: float
    best: float
    share: float
    tokens: int


@cache
def blocks(head: str, query: int, size: int) -> tuple[Block, ...]:
    """Returns the blocks of a query in order, its own last.

    >>> [len(blocks("near", 97, size)) for size in (4, 8, 16)]
    [25, 13, 7]
    """
    row = recorded()["rows"][head][str(query)]
    scores = [score / 100 for score in row["scores"]]
    powers = [exp(score - max(scores)) for score in scores]
    total = fsum(powers)
    result = []
    for number, bound in enumerate(row[str(size)]):
        span = slice(number * size, (number + 1) * size)
        held = scores[span]
        mean = fsum(held) / len(held)
        share = fsum(powers[span]) / total
        result.append(Block(bound / 100, mean, max(held), share, len(held)))
    return tuple(result)


def ranks(rule: str, seen: tuple[Block, ...]) -> list[float]:
    """Returns what a rule goes by, block by block."""
    if rule == "newest":
        return [float(number) for number in range(len(seen))]
    return [getattr(block, rule) for block in seen]


def chosen(rule: str, top_k: int, seen: tuple[Block, ...]) -> list[int]:
    """Returns the blocks that are read, in order: the last one, and the highest by the rule.

    >>> chosen("newest", 3, blocks("near", 97, 16))
    [4, 5, 6]
    """
    by_rank = ranks(rule, seen)
    last = len(seen) - 1
    order = sorted(range(last), key=lambda number: (-by_rank[number], number))
    return sorted([*order[: top_k - 1], last])


def _verdict(rule: str, seen: tuple[Block, ...], read: list[int]) -> str:
    best = max(range(len(seen)), key=lambda number: seen[number].best)
    words = "" if best in read else "not "
    found = f"The key that scores highest is {words}among them"
    unread = [block for number, block in enumerate(seen) if number not in read]
    if not unread:
        return "Everything is read."
    if rule != "bound":
        return f"{found}."
    if best not in read:
        return f"{found}."
    sure = max(seen[number].best for number in read) >= max(block.bound for block in unread)
    return f"{found}, and the bounds {'prove' if sure else 'cannot prove'} it."


@drawing(
    head=Choice(list(HEADS), "far", "head", HEADS),
    query=Choice(list(QUERIES), 127, "token", "token {}"),
    block_size=Choice([4, 8, 16], 8, "tokens per block", "{}"),
    top_k=Slider([1, 2, 3, 4, 6, 8, 12, 16], 4, "blocks read"),
    rule=Choice(list(RULES), "bound", "which blocks", RULES),
)
def few_blocks(head: str, query: int, block_size: int, top_k: int, rule: str) -> str:
    """Draws every block's bound and scores, which ones are read, and the attention in each."""
    seen = blocks(head, query, block_size)
    read = chosen(rule, top_k, seen)
    share = 100 * fsum(seen[number].share for number in read)
    tokens = sum(seen[number].tokens for number in read)
    every = sum(block.tokens for block in seen)
    word = recorded()["tokens"][query].strip()
    # A pair of extremes takes as much as one token's key and value, an average key half of it.
    beside = len(seen) * BESIDE[rule] if len(read) < len(seen) else 0
    cost = (
        f"Read: {len(read)} of {len(seen)} blocks, {tokens} tokens; with what the choice looks at "
        f"{100 * (tokens + beside) / every:.0f} % of the bytes, {share:.0f} % of the attention."
    )
    verdict = _verdict(rule, seen, read)
    canvas = Canvas(
        "few_blocks",
        396,
        f"Token {query} reads {len(read)} of {len(seen)} blocks",
        f"One bar a block: what its keys can score at most, with a line in it for the best score "
        f"they have and a dot for their average. Below, the attention in each. The head "
        f"{HEADS[head]}; read are the blocks {', '.join(map(str, read))}, by the {RULES[rule]}. "
        f"{cost} {verdict}",
        f"Token {query}, “{word}”, reads {len(read)} of {len(seen)} blocks",
        f"{HEADS[head]}; blocks of {block_size}, {RULES[rule]}",
    )
    _scores(canvas, seen, read)
    _shares(canvas, seen, read)
    canvas.key(MARGIN, 290, "cached", "read")
    canvas.key(MARGIN + 74, 290, "reserved", "not read")
    canvas.key(MARGIN + 174, 290, "wasted", "attention missed")
    y = canvas.paragraph(314, cost)
    canvas.paragraph(y, verdict, bold=True)
    return canvas.svg()


def _scores(canvas: Canvas, seen: tuple[Block, ...], read: list[int]) -> None:
    step = ROOM / len(seen)
    low = min(block.average for block in seen)
    high = max(block.bound for block in seen)

    def y(score: float) -> float:
        return _LOW - (score - low) / (high - low) * (_LOW - _TOP)

    for number, block in enumerate(seen):
        x, top = MARGIN + number * step, y(block.bound)
        role = "cached" if number in read else "reserved"
        canvas.rect(x, top, step - 2, _LOW - top + 2, role, "faint")
        canvas.line([(x, y(block.best)), (x + step - 2, y(block.best))], "ink", 2.5)
        middle = x + step / 2 - 1
        canvas.rect(middle - 2, y(block.average) - 2, 4, 4, "paper", "ink")
    canvas.text(MARGIN, _TOP - 8, "bar: bound; line: best key; dot: average", size=12, role="faint")


def _shares(canvas: Canvas, seen: tuple[Block, ...], read: list[int]) -> None:
    step = ROOM / len(seen)
    canvas.text(MARGIN, _LOW + 20, "attention in each block", size=12, role="faint")
    most = max(block.share for block in seen)
    for number, block in enumerate(seen):
        tall = max(1.0, block.share / most * _SHARE_HIGH)
        role = "cached" if number in read else "wasted"
        canvas.rect(MARGIN + number * step, _SHARE_LOW - tall, step - 2, tall, role)
    canvas.line([(MARGIN, _SHARE_LOW), (MARGIN + ROOM, _SHARE_LOW)], "rule")
