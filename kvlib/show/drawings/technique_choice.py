"""Which techniques are left when you say what you need: bytes, text, and what is asked later."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from kvlib.show.drawings.controls import Choice, Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas

_LEFT, _BAR, _TOP, _STEP = MARGIN + 148, 92, 96, 24
_FIGURES = (_LEFT + _BAR + 58, _LEFT + _BAR + 114, WIDTH - MARGIN)
FOUND = 0.9  # of the needles: as many as the full cache must find for the test to count


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    """The rows of the record `techniques`, as `measure/techniques.py` has left them."""
    text = (files("kvlib") / "data" / "techniques.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["rows"])


def misses(row: dict[str, Any], saved: float, worse: float | None, later: bool) -> str:
    """Returns what a technique misses of what is asked for, "" if nothing.

    Args:
        row: of the record.
        saved: the share of bytes that must be saved.
        worse: how much larger the perplexity may be, as a share; None allows anything.
        later: what is asked for after the text was read must be found.

    Example:
        >>> row = {"saved": 0.5, "perplexity_ratio": 1.2, "needle_asked_later": 0.0}
        >>> misses(row, 0.6, None, True), misses(row, 0.5, 0.1, False), misses(row, 0.5, None, True)
        ('bytes', 'text', 'needle')
    """
    if row["saved"] < saved:
        return "bytes"
    if worse is not None and row["perplexity_ratio"] > 1 + worse:
        return "text"
    return "needle" if later and row["needle_asked_later"] < FOUND else ""


def _row(canvas: Canvas, y: float, row: dict[str, Any], missing: str) -> None:
    role = "faint" if missing else "ink"
    canvas.text(_LEFT - 8, y, row["technique"], "end", bold=not missing, role=role)
    share = max(0.0, row["saved"])
    canvas.rect(_LEFT, y - 11, _BAR, 14, "paper", "rule")
    canvas.rect(_LEFT, y - 11, _BAR * share, 14, "reserved" if missing else "cached")
    ratio = row["perplexity_ratio"]
    text = f"× {ratio:.2f}" if ratio < 10 else f"× {ratio:.0f}"
    figures = text, f"{100 * row['needle_asked_later']:.0f} %", missing or "left"
    for x, words in zip(_FIGURES, figures, strict=True):
        canvas.text(x, y, words, "end", bold=not missing, role=role)


@drawing(
    saved=Slider([0.0, 0.25, 0.45, 0.6, 0.7, 0.8], 0.45, "bytes saved, at least", "{:.0%}"),
    worse=Choice(
        [0.0, 0.01, 0.05, 0.25, None],
        0.05,
        "perplexity, at most",
        {0.0: "the same", 0.01: "1 % more", 0.05: "5 % more", 0.25: "25 % more", None: "any"},
    ),
    later=Toggle(True, "finds what is asked for later"),
)
def technique_choice(saved: float, worse: float | None, later: bool) -> str:
    """Draws the measured techniques and which of them are left under the reader's conditions."""
    rows = _rows()
    found = [(row, misses(row, saved, worse, later)) for row in rows]
    left = [row["technique"] for row, missing in found if not missing]
    names = "; ".join(left) or "none: give something up"
    verdict = f"{len(left)} of {len(rows)} are left: {names}."
    canvas = Canvas(
        "technique_choice",
        _TOP + _STEP * len(rows) + 74,
        "What is left under your conditions",
        f"One line for each technique: bytes saved, perplexity against the exact cache, needles "
        f"found that were asked for later, and what it misses. {verdict}",
        under="Measured on SmolLM2-135M; saved of 16 bits, for 528 tokens",
    )
    heads = ("text", "later", "misses")
    canvas.text(_LEFT, _TOP - 26, "saved", role="faint")
    for x, words in zip(_FIGURES, heads, strict=True):
        canvas.text(x, _TOP - 26, words, "end", role="faint")
    for line, (row, missing) in enumerate(found):
        _row(canvas, _TOP + _STEP * line, row, missing)
    canvas.paragraph(_TOP + _STEP * len(rows) + 14, verdict, bold=True)
    return canvas.svg()
