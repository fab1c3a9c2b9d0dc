"""A row that grows by a factor: what is copied, what stands beside it then, what stays empty."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from kvlib.ledger import grown_len
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

FIRST = 16
_TOP, _HIGH, _LEFT = 92, 176, MARGIN + 46


class Life(NamedTuple):
    """A row from its first token to its last, one token at a time.

    Attributes:
        rows: the lengths it had, in order.
        copied: tokens copied in all.
        peak: the most slots that existed at once, old row and new.
        unused: slots of the last row that no token filled.
    """

    rows: tuple[int, ...]
    copied: int
    peak: int
    unused: int


def life(growth: float, final: int, first: int = FIRST) -> Life:
    """Returns what growing by a factor costs a text of `final` tokens.

    Example:
        Rows of 16, 32, 64 and 128 slots for 100 tokens:

        >>> life(2, 100)
        Life(rows=(16, 32, 64, 128), copied=112, peak=192, unused=28)
    """
    rows = [first]
    while rows[-1] < final:
        rows.append(grown_len(rows[-1], rows[-1] + 1, 2**40, growth))
    peak = max((old + new for old, new in pairwise(rows)), default=first)
    return Life(tuple(rows), sum(rows[:-1]), peak, rows[-1] - final)


def _chart(canvas: Canvas, final: int, found: Life) -> None:
    across, up = (ROOM - 46) / final, _HIGH / found.peak
    floor = _TOP + _HIGH
    starts = (0, *found.rows[:-1])
    for start, row in zip(starts, found.rows, strict=True):
        width = (min(row, final) - start) * across
        canvas.rect(_LEFT + start * across, floor - row * up, width, row * up, "reserved")
    for old, new in pairwise(found.rows):
        x, y = _LEFT + old * across, floor - (old + new) * up
        canvas.line([(x, floor - new * up), (x, y)], "wasted", 3)
    canvas.line([(_LEFT, floor), (_LEFT + final * across, floor - final * up)], "used", 4)
    canvas.line([(_LEFT, _TOP), (_LEFT, floor), (WIDTH - MARGIN, floor)], "ink", 1.5)
    for slots in (found.rows[-1], found.peak):
        canvas.text(_LEFT - 6, floor - slots * up + 8, f"{slots:,}", "end", size=11)
    canvas.text(_LEFT, floor + 17, "tokens stored", size=12, role="faint")
    canvas.text(WIDTH - MARGIN, floor + 17, f"{final:,}", "end", size=12)


@drawing(
    growth=Slider([1.1, 1.25, 1.5, 2, 3, 4], 2, "growth factor", "x {}"),
    final=Slider(
        [100, 500, 1000, 1024, 1025, 2048, 4096, 8192], 1000, "final length (tokens)", "{:,}"
    ),
)
def growth_factor(growth: float, final: int) -> str:
    """Draws the slots of a growing row over the tokens stored in it."""
    found = life(growth, final)
    one_by_one = life(1, final).copied
    verdict = (
        f"{found.copied:,} tokens copied, {found.copied / final:.2f} for each one stored. "
        f"One slot at a time: {one_by_one:,}."
    )
    canvas = Canvas(
        "growth_factor",
        388,
        f"A row that grows {growth:g} times as long whenever it is full",
        f"Slots over tokens stored. The row has {len(found.rows)} lengths, from {FIRST} to "
        f"{found.rows[-1]:,} slots. {verdict} At most {found.peak:,} slots exist at once.",
        heading=f"{final:,} tokens, growth factor {growth:g}",
        under=f"From {FIRST} slots; {len(found.rows) - 1} times too short, and so copied",
    )
    for x, role, words in (
        (MARGIN, "used", "a token"),
        (MARGIN + 96, "reserved", "slots of the row"),
        (MARGIN + 242, "wasted", "old row, during a copy"),
    ):
        canvas.key(x, 72, role, words)
    _chart(canvas, final, found)
    rows = (
        ("reserved", "empty in the end, share of the row", found.unused, found.rows[-1]),
        ("wasted", "slots at the peak, share of the last row", found.peak, found.rows[-1]),
    )
    canvas.table(
        312,
        WIDTH - 84,
        [(*row, f"{n:,}", f"{100 * n / whole:.1f} %") for *row, n, whole in rows],
    )
    canvas.paragraph(360, verdict, bold=True)
    return canvas.svg()
