"""Your engine beside the four references: what became of each request, and the score.

The scores are computed by the capstone's judge, whose clock is arithmetic, and kept in
`kvlib/data/capstone.json` by `measure/capstone.py`; a test computes some of them again.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from kvlib.capstone import NUM_REQUESTS, Score
from kvlib.show.drawings.controls import Choice, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

CHUNKS, WATERMARKS = (64, 128, 256), (0.0, 0.1)
_FIELDS = Score.__dataclass_fields__
_TOP, _STEP, _BAR = 84, 44, ROOM - 62


@cache
def scores() -> tuple[tuple[Score, ...], dict[tuple, Score]]:
    """Returns the references, and your engine by its four choices."""
    data = json.loads((files("kvlib") / "data" / "capstone.json").read_text(encoding="utf-8"))
    found = {}
    for row in data["yours"]:
        score = Score(**{name: row[name] for name in _FIELDS})
        found[row["chunk"], row["watermark"], row["gives_up"], row["short_first"]] = score
    return tuple(Score(**row) for row in data["references"]), found


def _row(canvas: Canvas, at: int, score: Score) -> None:
    y, x = _TOP + at * _STEP, float(MARGIN)
    mine = score.name == "yours"
    canvas.text(MARGIN, y, score.name if not mine else "your engine", bold=mine, size=12)
    for count, role in ((score.good, "used"), (score.stalled, "decode"), (score.late, "wasted")):
        width = _BAR * count / NUM_REQUESTS
        if count:
            canvas.rect(x, y + 5, width, 15, role, "ink" if mine else "")
            if width > 18:
                words = str(count)
                canvas.rect(x + 3, y + 7, 8 + 6 * len(words), 11, "paper")
                canvas.text(x + 5, y + 16, words, size=10)
        x += width
    canvas.text(WIDTH - MARGIN, y + 17, f"{score.goodput:.2f}", "end", bold=True)


@drawing(
    chunk=Choice(CHUNKS, 128, "tokens a step"),
    watermark=Choice(WATERMARKS, 0.0, "blocks left free", {0.0: "none", 0.1: "10 %"}),
    gives_up=Toggle(False, "who waited 0.6 s", off="goes on waiting", on="is given up"),
    short_first=Toggle(False, "next in line", off="first come", on="shortest prompt"),
)
def capstone_board(chunk: int, watermark: float, gives_up: bool, short_first: bool) -> str:
    """Draws the requests of each engine as good, stalled and late, with its goodput."""
    references, found = scores()
    mine = found[chunk, watermark, gives_up, short_first]
    best = max(references, key=lambda score: score.goodput)
    times = mine.goodput / best.goodput
    beaten = sum(mine.goodput > each.goodput for each in references)
    verdict = (
        f"Beats {beaten} of 4: {times:.2f} times the best reference."
        f" {mine.finished} of {NUM_REQUESTS} get an answer, {mine.forwarded:,} tokens are computed."
    )
    seen = "; ".join(f"{s.name} {s.good} good, {s.goodput:.2f}" for s in (*references, mine))
    canvas = Canvas(
        "capstone_board",
        _TOP + 5 * _STEP + 78,
        "Your engine and the four to beat",
        f"A bar for each engine, its {NUM_REQUESTS} requests cut into good, stalled and late, with "
        f"good requests a second beside it: {seen}. {verdict}",
        under=f"{NUM_REQUESTS} requests each; on the right: good ones a second",
    )
    for at, score in enumerate((*references, mine)):
        _row(canvas, at, score)
    low = _TOP + 5 * _STEP + 14
    canvas.key(MARGIN, low, "used", "good")
    canvas.key(MARGIN + 84, low, "decode", "stood still")
    canvas.key(MARGIN + 198, low, "wasted", "late, or no answer")
    canvas.paragraph(low + 26, verdict, bold=True)
    return canvas.svg()
