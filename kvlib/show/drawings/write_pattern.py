"""Which slots one step writes, and with how many writes, for four ways of writing it."""

from __future__ import annotations

from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, Canvas

CACHED = (5, 2, 7, 0, 3, 6, 1, 4)  # tokens that each row holds already
ROW_LEN = 16
WAYS = {
    "loop": "one token at a time",
    "slice": "one slice a row",
    "index": "one index write",
    "shared": "the outline: one row for all",
}
_CELL, _LEFT, _TOP = 23, 62, 84


def writes(batch: int, chunk: int, way: str) -> list[tuple[int, int, int]]:
    """Returns (call, row, position) of every new token, in the order they are written.

    Calls are counted from 1, for the keys; the values need as many again.

    Example:
        >>> writes(2, 2, "loop")
        [(1, 0, 5), (2, 1, 2), (3, 0, 6), (4, 1, 3)]
        >>> writes(2, 2, "slice")
        [(1, 0, 5), (1, 0, 6), (2, 1, 2), (2, 1, 3)]
        >>> {call for call, _, _ in writes(8, 8, "index")}
        {1}
    """
    if way in ("slice", "index"):
        tokens = [(row, i) for row in range(batch) for i in range(chunk)]
    else:
        tokens = [(row, i) for i in range(chunk) for row in range(batch)]
    number = {"slice": lambda at: tokens[at][0] + 1, "index": lambda at: 1}
    call = number.get(way, lambda at: at + 1)
    return [
        (call(at), 0 if way == "shared" else row, CACHED[row] + i)
        for at, (row, i) in enumerate(tokens)
    ]


def survivors(batch: int, chunk: int) -> tuple[int, int]:
    """Returns how many tokens a row shared by all sequences holds at the end, and of how many.

    Example:
        >>> survivors(2, 2)  # 5 + 2 and 2 + 2 tokens, in slots [0, 7) and [0, 4)
        (7, 11)
    """
    ends = [cached + chunk for cached in CACHED[:batch]]
    return max(ends), sum(ends)


def _rows(canvas: Canvas, batch: int, chunk: int, way: str) -> None:
    written = {(row, position): call for call, row, position in writes(batch, chunk, way)}
    ends = [cached + chunk for cached in CACHED[:batch]]
    for row in range(1 if way == "shared" else batch):
        y = _TOP + row * _CELL
        canvas.text(MARGIN, y + 15, "all" if way == "shared" else f"row {row}")
        for position in range(ROW_LEN):
            x, owners = _LEFT + position * _CELL, sum(position < end for end in ends)
            lost = way == "shared" and owners > 1
            held = position < (max(ends) if way == "shared" else CACHED[row])
            role = "wasted" if lost else "cached" if held else "paper"
            if call := written.get((row, position)):
                canvas.rect(x, y, _CELL - 3, _CELL - 3, "paper", "ink")
                canvas.rect(x, y + 16, _CELL - 3, 4, "wasted" if lost else "decode")
                canvas.text(x + 10, y + 13, str(call), "middle", bold=True)
            else:
                canvas.rect(x, y, _CELL - 3, _CELL - 3, role, "rule")


@drawing(
    batch=Slider([1, 2, 4, 8], 4, "batch (rows)"),
    chunk=Slider([1, 2, 4, 8], 2, "new tokens a row"),
    way=Choice(list(WAYS), "loop", "way of writing", WAYS),
)
def write_pattern(batch: int, chunk: int, way: str) -> str:
    """Draws the rows of a cache and, in each new slot, the number of the write that fills it."""
    calls, tokens = max(call for call, _, _ in writes(batch, chunk, way)), batch * chunk
    left, ever = survivors(batch, chunk)
    told = f"{calls} write{'s' * (calls > 1)} for {tokens} token{'s' * (tokens > 1)}"
    fate = f"{left} of {ever} tokens are left." if way == "shared" else "no row touches another."
    low = _TOP + _CELL * (1 if way == "shared" else batch) + 22
    canvas = Canvas(
        "write_pattern",
        low + 40,
        f"{chunk} new token{'s' * (chunk > 1)} for each of {batch} row{'s' * (batch > 1)}",
        f"{batch} rows that hold {', '.join(map(str, CACHED[:batch]))} tokens; {chunk} new in "
        f"each, written as {WAYS[way]}: {told}, and as many again for the values. {fate}",
        under=f"Keys, {WAYS[way]}; values need as many again",
    )
    canvas.key(MARGIN, 70, "cached", "held before")
    canvas.key(MARGIN + 106, 70, "decode", "new, by its write's number")
    if way == "shared":
        canvas.key(MARGIN + 302, 70, "wasted", "overwritten")
    _rows(canvas, batch, chunk, way)
    canvas.paragraph(low, f"{told}: {fate}", bold=True)
    return canvas.svg()
