"""Bits by grouping: how far off the real model's keys or values are read back, and what it costs.

The errors are measured: `measure/quantized_error.py` leaves them in
`kvlib/data/quantized_error.json`. Bits and bytes are counted by `kvlib.precision`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from math import log10
from typing import Any

from kvlib.precision import Precision
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

SIDES = ("keys", "values")
CODES = ("8", "fp8", "4", "2")
GROUPS = ("a whole row", "32 of a row", "a channel")
FULL_BITS = 16
HEAD_DIM = 64  # of SmolLM2-135M
_LEFT, _TOP, _HIGH = MARGIN + 92, 92, 62
_WIDE = (WIDTH - MARGIN - _LEFT) / len(GROUPS)


@cache
def record() -> dict[str, Any]:
    """Returns what was measured."""
    text = (files("kvlib") / "data" / "quantized_error.json").read_text(encoding="utf-8")
    return json.loads(text)


def cell(side: str, code: str, group: str) -> dict[str, Any]:
    """Returns one measured cell: its relative error, perplexity and bits."""
    key = (side, code, group)
    return next(c for c in record()["grid"] if (c["side"], c["code"], c["group"]) == key)


def precision(code: str, group: str) -> Precision:
    """Returns the format of a cell.

    Example:
        >>> precision("4", "a channel").bits, precision("fp8", "32 of a row").group_size
        (4, 32)
    """
    kind = {"kind": "fp8"} if code == "fp8" else {"bits": int(code)}
    grouped = {"32 of a row": {"group_size": 32}, "a channel": {"along": "channel"}}
    return Precision(**kind, **grouped.get(group, {}))


def name_of(code: str) -> str:
    """Writes a kind of code.

    Example:
        >>> name_of("2"), name_of("fp8")
        ('2 bits', 'fp8')
    """
    return code if code == "fp8" else f"{code} bits"


def area(error: float) -> float:
    """Returns how much of a cell's area stands for an error, 0.1 % to 100 % on a log scale.

    Example:
        >>> [round(area(e), 2) for e in (0.001, 0.01, 1.0)]
        [0.04, 0.33, 1.0]
    """
    return min(max((log10(error) + 3) / 3, 0.04), 1) if error < 1 else 1.0


def percent(error: float) -> str:
    """Writes a share in percent, with about two digits.

    Example:
        >>> percent(0.0077), percent(0.02), percent(0.131)
        ('0.77 %', '2.0 %', '13 %')
    """
    digits = 2 if error < 0.01 else 1 if error < 0.1 else 0
    return f"{100 * error:.{digits}f} %"


def _grid(canvas: Canvas, side: str, code: str, group: str) -> None:
    for column, each in enumerate(GROUPS):
        middle = _LEFT + (column + 0.5) * _WIDE
        canvas.text(middle, _TOP - 8, each, "middle", bold=each == group)
    for row, bits in enumerate(CODES):
        y = _TOP + row * _HIGH
        canvas.text(MARGIN, y + _HIGH / 2 + 5, name_of(bits), bold=bits == code)
        for column, each in enumerate(GROUPS):
            x, error = _LEFT + column * _WIDE, cell(side, bits, each)["relative_error"]
            canvas.rect(x, y, _WIDE, _HIGH, "paper", "rule")
            high = (_HIGH - 22) * area(error)
            canvas.rect(x + 3, y + _HIGH - 3 - high, _WIDE - 6, high, "wasted")
            canvas.text(x + _WIDE / 2, y + 15, percent(error), "middle", bold=True)
    x, y = _LEFT + GROUPS.index(group) * _WIDE, _TOP + CODES.index(code) * _HIGH
    corners = [(x, y), (x + _WIDE, y), (x + _WIDE, y + _HIGH), (x, y + _HIGH), (x, y)]
    canvas.line(corners, "ink", 3)


def _size_bar(canvas: Canvas, y: float, bits: float, code_bits: int) -> None:
    """Draws the bits of an element beside those of float16."""
    scale = ROOM / FULL_BITS
    canvas.rect(MARGIN, y, ROOM, 14, "paper", "faint")
    canvas.rect(MARGIN, y, code_bits * scale, 14, "used")
    canvas.rect(MARGIN + code_bits * scale, y, (bits - code_bits) * scale, 14, "reserved")


@drawing(
    side=Choice(SIDES, "keys", "of"),
    code=Slider(CODES, "4", "codes of", {c: name_of(c) for c in CODES}),
    group=Choice(GROUPS, "a channel", "one scale for"),
)
def precision_grid(side: str, code: str, group: str) -> str:
    """Draws the measured errors of one side by bits and grouping, with one cell marked."""
    here, block = cell(side, code, group), record()["block_size"]
    format_ = precision(code, group)
    bits = format_.bits_per_element(HEAD_DIM, block)
    exact = record()["exact_perplexity"]
    words = f"{name_of(code)}, one scale for {group}: {percent(here['relative_error'])} off"
    quality = f"Perplexity {here['perplexity']:.4g}; {exact:.4g} in full precision."
    size = f"{bits:g} bits a number; {FULL_BITS / bits:.2f} times as many fit as in float16."
    canvas = Canvas(
        "precision_grid",
        _TOP + len(CODES) * _HIGH + 148,
        f"Error of {side} by bits and grouping",
        f"A grid of {len(CODES)} rows, by bits, and {len(GROUPS)} columns, by what shares a scale; "
        f"each bar as high as the logarithm of the error. Marked: {words}. {quality} {size}",
        f"SmolLM2's {side}: error by bits and group",
        "error beside the numbers; heights are its logarithm",
    )
    _grid(canvas, side, code, group)
    y = _TOP + len(CODES) * _HIGH + 28
    canvas.text(MARGIN, y, words, bold=True)
    canvas.text(MARGIN, y + 20, quality)
    canvas.text(MARGIN, y + 40, size)
    _size_bar(canvas, y + 52, bits, format_.bits)
    canvas.key(MARGIN, y + 90, "used", "codes")
    canvas.key(MARGIN + 90, y + 90, "reserved", "scales, minima")
    canvas.key(MARGIN + 236, y + 90, "paper", "saved of float16")
    return canvas.svg()
