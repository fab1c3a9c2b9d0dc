"""Which tokens of one text an eviction policy keeps, step by step, and who would be looked at.

The weights are those of a real model that read the text with nothing evicted; `tools` holds the
script that recorded them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from itertools import groupby
from math import fsum

from kvlib.eviction import LFUPolicy, LRUPolicy
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, Canvas

POLICIES = {
    "LRU": "least recently used",
    "LFU": "least often used",
    "sinks": "first four pinned, else least recently used",
}
SINKS, NUM_TOKENS = 4, 24
_CELL, _ROW = 17, 7
_BARS_LOW, _BARS_HIGH, _GRID = 150, 84, 190


@cache
def recorded() -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]:
    """Returns the tokens, and for each its attention weights on those up to itself.

    >>> words, weights = recorded()
    >>> len(words), [len(row) for row in weights[:3]], weights[0]
    (24, [1, 2, 3], (1.0,))
    """
    text = (files("kvlib") / "data" / "attention_rows.json").read_text(encoding="utf-8")
    record = json.loads(text)
    rows = (tuple(weight / sum(row) for weight in row) for row in record["weights"])
    return tuple(word.strip() for word in record["tokens"]), tuple(rows)


@cache
def held(policy: str, budget: int) -> tuple[tuple[int, ...], ...]:
    """Returns for each step the tokens held when its own token is read, that one included.

    Attention is dense: every step uses every token it holds.

    >>> [held(policy, 6)[9] for policy in ("LRU", "LFU", "sinks")]
    [(4, 5, 6, 7, 8, 9), (0, 1, 2, 3, 4, 9), (0, 1, 2, 3, 8, 9)]
    """
    line, steps = LFUPolicy() if policy == "LFU" else LRUPolicy(), []
    for token in range(NUM_TOKENS):
        if len(line) == budget:
            line.evict()
        line.add(token)
        if policy == "sinks" and token < SINKS:
            line.pin(token)
        steps.append(tuple(each for each in range(token + 1) if each in line))
        for each in steps[-1]:
            line.touch(each)
    return tuple(steps)


def lost_share(policy: str, budget: int, step: int) -> float:
    """Returns the share of a token's attention that goes to tokens the policy has given up."""
    kept = held(policy, budget)[step]
    return fsum(w for token, w in enumerate(recorded()[1][step]) if token not in kept)


def _role(token: int, step: int, kept: tuple[int, ...]) -> str:
    if token == step:
        return "decode"
    return "cached" if token in kept else "wasted"


def _verdict(policy: str, budget: int, step: int) -> str:
    if len(held(policy, budget)[step]) == step + 1:
        return "Nothing has been given up yet."
    lost, first = lost_share(policy, budget, step), recorded()[1][step][0]
    words = f"The tokens given up would get {100 * lost:.0f} % of the attention"
    return f"{words}, token 0 alone {100 * first:.0f} %." if lost > first else f"{words}."


@drawing(
    policy=Choice(list(POLICIES), "LRU", "policy", POLICIES),
    budget=Slider([6, 8, 12, 16, 20], 8, "tokens kept"),
    step=Slider(list(range(NUM_TOKENS)), 20, "token being read"),
)
def token_strip(policy: str, budget: int, step: int) -> str:
    """Draws one token's attention over kept and lost tokens, above all the steps before."""
    words, weights = recorded()
    kept, verdict = held(policy, budget)[step], _verdict(policy, budget, step)
    canvas = Canvas(
        "token_strip",
        _GRID + NUM_TOKENS * _ROW + 84,
        f"What is kept when token {step} is read",
        f"Bars: the attention of token {step}, {words[step]}, on each token before it. Below, one "
        f"row a step: the tokens kept by {POLICIES[policy]} in a budget of {budget}. Kept now: "
        f"{', '.join(map(str, kept))}. {verdict}",
        f"Token {step}, “{words[step]}”, looks back",
        f"{POLICIES[policy]}, {budget} kept",
    )
    _levels(canvas)
    for token, weight in enumerate(weights[step]):
        x, high = MARGIN + token * _CELL, max(1.0, weight * _BARS_HIGH)
        canvas.rect(x, _BARS_LOW - high, _CELL - 3, high, _role(token, step, kept))
    for token in range(0, NUM_TOKENS, 4):
        x = MARGIN + token * _CELL + (_CELL - 3) / 2
        canvas.text(x, _BARS_LOW + 17, f"{token}", "middle", size=12)
    canvas.text(MARGIN, _GRID - 6, "step by step, from the first token down", size=12, role="faint")
    for row in range(step + 1):
        _row(canvas, row, held(policy, budget)[row])
    y = _GRID + NUM_TOKENS * _ROW + 22
    for x, role, name in (
        (0, "cached", "kept"),
        (88, "wasted", "given up"),
        (200, "decode", "new"),
    ):
        canvas.key(MARGIN + x, y, role, name)
    canvas.paragraph(y + 26, verdict, bold=True)
    return canvas.svg()


def _levels(canvas: Canvas) -> None:
    right = MARGIN + NUM_TOKENS * _CELL
    for level in (0, 0.5, 1):
        y = _BARS_LOW - level * _BARS_HIGH
        canvas.line([(MARGIN, y), (right, y)], "rule")
        if level:
            words = f"{100 * level:.0f} % of its attention"
            canvas.text(right, y + 13, words, "end", role="faint")


def _row(canvas: Canvas, step: int, kept: tuple[int, ...]) -> None:
    y = _GRID + step * _ROW
    for role, run in groupby(range(step + 1), lambda token: _role(token, step, kept)):
        tokens = list(run)
        width = len(tokens) * _CELL - 3
        canvas.rect(MARGIN + tokens[0] * _CELL, y, width, _ROW - 1, role)
