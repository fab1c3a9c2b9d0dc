"""Attention weights of one new query when its key is appended, or, by mistake, the query itself.

Keys and queries are independent standard normal vectors, seeded. Given the query `q`, its score
with such a key, `q . k / sqrt(head_dim)`, is normal with standard deviation `|q| / sqrt(head_dim)`:
scores are drawn directly, and a long cache costs one random number a token.
"""

from __future__ import annotations

from functools import cache
from math import exp, fsum, log2, sqrt
from random import Random

from kvlib.show.drawings.controls import Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas

LENGTHS = [1, 3, 7, 15, 31, 63, 127, 255, 511]
HEAD_DIMS = [16, 32, 64, 128]
QUERIES = 40
_LEFT, _RIGHT, _TOP, _LOW = MARGIN + 38, WIDTH - MARGIN - 6, 62, 222


def scores(head_dim: int, seed: int) -> tuple[list[float], float, float]:
    """Returns one query's scores: with the cached keys, with its own new key, and with itself."""
    draw = Random(f"scores {head_dim} {seed}")
    square = fsum(round(draw.gauss(0, 1), 3) ** 2 for _ in range(head_dim))
    new, *old = (
        sqrt(square / head_dim) * round(draw.gauss(0, 1), 3) for _ in range(1 + LENGTHS[-1])
    )
    return old, new, square / sqrt(head_dim)


def softmax(values: list[float]) -> list[float]:
    """Returns the softmax, computed stably."""
    highest = max(values)
    powers = [exp(value - highest) for value in values]
    total = fsum(powers)
    return [power / total for power in powers]


@cache
def mean_self_weights(head_dim: int, query_as_key: bool) -> list[float]:
    """Returns the mean weight on the newest position for each of `LENGTHS` cached tokens.

    With 63 cached tokens and `head_dim` 64 an even share would be 1/64, about 0.016. A query
    appended as its own key scores about sqrt(64) = 8 there, and takes nearly everything:

    >>> [round(mean_self_weights(64, bug)[LENGTHS.index(63)], 2) for bug in (False, True)]
    [0.02, 0.93]
    """
    sums = [0.0] * len(LENGTHS)
    for seed in range(QUERIES):
        old, new, itself = scores(head_dim, seed)
        for index, length in enumerate(LENGTHS):
            sums[index] += softmax([*old[:length], itself if query_as_key else new])[-1]
    return [total / QUERIES for total in sums]


def _height(weight: float, top: float = 1.0) -> float:
    return _LOW - (_LOW - _TOP) * weight / top


def _axis(canvas: Canvas, top: float, ticks: int) -> None:
    for tick in range(ticks + 1):
        y = _height(tick / ticks)
        canvas.line([(_LEFT, y), (_RIGHT, y)], "rule")
        canvas.text(_LEFT - 6, y + 4, f"{top * tick / ticks:.3g}", "end", size=12)


@drawing(
    cached=Slider(LENGTHS[:-1], 63, "cached tokens"),
    head_dim=Slider(HEAD_DIMS, 64, "head_dim"),
    query_as_key=Toggle(False, "appended", off="the new key", on="the query (the bug)"),
)
def append_attention(cached: int, head_dim: int, query_as_key: bool) -> str:
    """Draws one query's attention weights as bars: the cached tokens, then the new one."""
    old, new, itself = scores(head_dim, seed=0)
    weights = softmax([*old[:cached], itself if query_as_key else new])
    even, newest = 1 / len(weights), "wasted" if query_as_key else "decode"
    what, why = (
        ("the query itself", "A query resembles itself more than any key: it drowns the cache.")
        if query_as_key
        else ("its own key", "The new token is one among its equals.")
    )
    canvas = Canvas(
        "append_attention",
        326,
        f"Weights after appending {what}",
        f"One bar a token, {cached} of them cached. The new token, on the right, gets weight "
        f"{weights[-1]:.3f}; an even share is {even:.3f}. {why}",
    )
    # The top is a power of two, so that the axis moves only when it must.
    top = 1.0
    while top / 2 >= max(weights):
        top /= 2
    _axis(canvas, top, 2)
    width = (_RIGHT - _LEFT) / len(weights)
    for index, weight in enumerate(weights):
        x, y = _LEFT + index * width, _height(weight, top)
        bar = width - 1 if width > 3 else max(width, 1)
        canvas.rect(x, y, bar, _LOW - y, newest if index == cached else "cached")
    line = [(x, _height(even, top)) for x in (_LEFT, _RIGHT)]
    canvas.line(line, "ink", 1.5, dash="5 4")
    canvas.text(_RIGHT, _LOW + 16, "new", "end", size=12)
    canvas.key(MARGIN, 262, "cached", f"{cached} cached")
    canvas.key(MARGIN + 112, 262, newest, "the new token")
    canvas.text(MARGIN + 242, 262, f"- - even share {even:.3f}")
    canvas.text(MARGIN, 288, f"Weight on the new token: {weights[-1]:.3f}", bold=True)
    canvas.text(MARGIN, 308, f"Left for the whole cache: {1 - weights[-1]:.3f}")
    return canvas.svg()


@drawing(
    cached=Slider(LENGTHS, 63, "cached tokens"),
    head_dim=Slider(HEAD_DIMS, 64, "head_dim"),
)
def self_weight(cached: int, head_dim: int) -> str:
    """Draws the mean weight on the newest position against the cached length, right and wrong."""
    here = LENGTHS.index(cached)
    right, wrong = (mean_self_weights(head_dim, bug) for bug in (False, True))
    canvas = Canvas(
        "self_weight",
        322,
        f"Mean weight on the newest position, head_dim {head_dim}",
        f"Two curves against the number of cached tokens. At {cached} cached tokens the right "
        f"version puts {right[here]:.3f} on the newest position, the one that appends the query as "
        f"key {wrong[here]:.3f}: a longer cache dilutes the first and hardly moves the second.",
        "Mean weight on the newest position",
        f"head_dim {head_dim}, {QUERIES} random queries",
    )
    _axis(canvas, 1.0, 4)
    step = (_RIGHT - _LEFT) / log2(LENGTHS[-1] + 1)
    xs = [_LEFT + step * log2(length + 1) for length in LENGTHS]
    for y, means, role, dash, words in (
        (284, wrong, "wasted", "7 4", "query appended as key (dashed)"),
        (306, right, "decode", "", "new key appended"),
    ):
        canvas.line(zip(xs, map(_height, means), strict=True), role, 3, dash)
        canvas.rect(xs[here] - 5, _height(means[here]) - 5, 10, 10, role, "ink")
        canvas.key(MARGIN, y, role, words)
        canvas.text(WIDTH - MARGIN, y, f"{means[here]:.3f} at {cached} cached", "end", bold=True)
    for x, length in list(zip(xs, LENGTHS, strict=True))[::2]:
        canvas.text(x, _LOW + 18, f"{length}", "middle", size=12)
    canvas.text(_RIGHT, _LOW + 36, "cached tokens", "end", role="faint")
    return canvas.svg()
