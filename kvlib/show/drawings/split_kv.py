"""Attention over keys that lie in parts: what each part knows, and how the parts merge."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, fsum, inf, log
from typing import NamedTuple

from kvlib.show.drawings.controls import Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

KEYS = 24
# Made up: one query's scores with 24 keys, and what each key's value is, one number.
SCORES = (
    *(1.6, 3.6, 1.8, 1.0, 3.3, 2.9, -2.6, 0.5, 1.7, -0.3, 1.2, -2.1),
    *(4.0, -0.5, 0.9, -0.6, 2.5, 1.4, -1.4, 0.8, -2.4, -1.6, -0.7, 1.0),
)
VALUES = (
    *(17, 6, 8, 13, 19, 11, 2, 12, 15, 7, 8, 17),
    *(15, 6, 2, 11, 9, 5, 16, 9, 1, 18, 11, 16),
)
_TOP, _LOW = 66, 136
_FIRST_ROW = 196


class Part(NamedTuple):
    """Attention over some of the keys.

    Attributes:
        lse: the logarithm of the sum of their powers; -inf without a key.
        out: the mean of their values, weighted by the powers.
    """

    lse: float
    out: float


def attend(first: int, end: int) -> Part:
    """Returns the attention over the keys `[first, end)`, the highest score subtracted first.

    >>> attend(3, 3)
    Part(lse=-inf, out=0.0)
    """
    if first == end:
        return Part(-inf, 0.0)
    peak = max(SCORES[first:end])
    powers = [exp(score - peak) for score in SCORES[first:end]]
    total = fsum(powers)
    mixed = fsum(p * v for p, v in zip(powers, VALUES[first:end], strict=True))
    return Part(peak + log(total), mixed / total)


def merge(one: Part, two: Part) -> Part:
    """Returns the attention over the keys of both.

    >>> round(merge(Part(log(2), 6.0), Part(log(6), 8.0)).out, 9)
    7.5
    """
    peak = max(one.lse, two.lse)
    if peak == -inf:
        return one
    weights = exp(one.lse - peak), exp(two.lse - peak)
    total = fsum(weights)
    return Part(peak + log(total), (weights[0] * one.out + weights[1] * two.out) / total)


def bounds(parts: int) -> list[tuple[int, int]]:
    """Returns where each part begins and ends.

    >>> bounds(3)
    [(0, 8), (8, 16), (16, 24)]
    """
    return [(KEYS * i // parts, KEYS * (i + 1) // parts) for i in range(parts)]


def _bars(canvas: Canvas, cuts: Iterable[tuple[int, int]]) -> None:
    """Draws each key's share of the whole, and the parts that the keys are cut into."""
    whole, width = attend(0, KEYS), ROOM / KEYS
    top = max(exp(score - whole.lse) for score in SCORES)
    for key, score in enumerate(SCORES):
        high = (_LOW - _TOP) * exp(score - whole.lse) / top
        canvas.rect(MARGIN + key * width + 1, _LOW - high, width - 2, high, "cached")
    for part, (first, end) in enumerate(cuts):
        left, right = MARGIN + first * width + 1, MARGIN + end * width - 1
        canvas.line([(left, _LOW + 3), (right, _LOW + 3)], "ink", 2)
        canvas.text((left + right) / 2, _LOW + 19, str(part + 1), "middle", size=12)


def _rows(canvas: Canvas, states: list[Part], order: list[int]) -> Part:
    """Writes what each part knows and what is known once it is merged; returns the whole."""
    whole, so_far = attend(0, KEYS), Part(-inf, 0.0)
    for x, words in ((190, "log-sum-exp"), (258, "output"), (330, "share"), (424, "merged so far")):
        canvas.text(x, _FIRST_ROW - 20, words, "end", size=12, role="faint")
    for row, part in enumerate(order):
        y, state = _FIRST_ROW + 20 * row, states[part]
        so_far = merge(so_far, state)
        canvas.text(MARGIN, y, f"part {part + 1}")
        canvas.text(190, y, f"{state.lse:.2f}", "end")
        canvas.text(258, y, f"{state.out:.2f}", "end")
        canvas.text(330, y, f"{100 * exp(state.lse - whole.lse):.0f} %", "end")
        canvas.text(424, y, f"{so_far.out:.2f}", "end", bold=row == len(order) - 1)
    return so_far


@drawing(
    parts=Slider([1, 2, 3, 4, 6, 8], 3, "parts"),
    backwards=Toggle(False, "merged", off="first part first", on="last part first"),
)
def split_kv(parts: int, backwards: bool) -> str:
    """Draws one query's keys cut into parts, what each part knows, and the merge."""
    cuts, whole = bounds(parts), attend(0, KEYS)
    states = [attend(*cut) for cut in cuts]
    order = list(range(parts))[:: -1 if backwards else 1]
    mean = fsum(state.out for state in states) / parts
    low = _FIRST_ROW + 20 * parts + 8
    verdict = f"All keys at once: {whole.out:.2f}. Plain mean of the parts: {mean:.2f}"
    longest = max(end - first for first, end in cuts)
    work = f"Keys in the longest part: {longest} of {KEYS}. States to merge: {parts}."
    canvas = Canvas(
        "split_kv",
        low + 58,
        f"{KEYS} keys in {parts} part{'s' * (parts > 1)}",
        f"One query's weights on {KEYS} keys as bars, cut into {parts}. {verdict}. {work} Merged "
        "by their log-sum-exp the parts give the whole, in either order.",
        under="Bars: each key's share of the whole softmax",
    )
    _bars(canvas, cuts)
    merged = _rows(canvas, states, order)
    canvas.line([(MARGIN, low - 12), (WIDTH - MARGIN, low - 12)], "rule")
    canvas.text(MARGIN, low + 8, f"Merged: {merged.out:.2f}", bold=True)
    canvas.text(MARGIN, low + 27, verdict)
    canvas.text(MARGIN, low + 46, work)
    return canvas.svg()
