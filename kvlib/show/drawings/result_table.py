"""The table of waste by length: what a reservation leaves empty, and what lies past its end."""

from __future__ import annotations

from typing import NamedTuple

from kvlib.catalog import model as published
from kvlib.ledger import grown_len
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas
from kvlib.sizes import format_bytes

LENGTHS = [128, 256, 512, 1024, 2048, 2049, 3000, 4096, 6000, 8192]
BEYOND = {
    "refuse": "refuse",
    "grow": "double and copy",
    "recompute": "double and recompute",
}
_BAR, _LEFT, _TOP = 132, MARGIN + 58, 84


class Cell(NamedTuple):
    """What became of one sequence.

    Attributes:
        row_len: slots of its row in the end.
        held: tokens that are stored.
        moved: tokens that were copied, or computed again, since their row was full.
    """

    row_len: int
    held: int
    moved: int


def outcome(length: int, reserved: int, beyond: str) -> Cell:
    """Returns what becomes of a sequence of `length` tokens in a row of `reserved` slots.

    Example:
        >>> outcome(128, 1024, "refuse")
        Cell(row_len=1024, held=128, moved=0)
        >>> outcome(3000, 1024, "refuse").held
        1024
        >>> outcome(3000, 1024, "grow")  # 1,024 tokens move, then 2,048
        Cell(row_len=4096, held=3000, moved=3072)
    """
    if beyond == "refuse":
        return Cell(reserved, min(length, reserved), 0)
    row_len = grown_len(reserved, length, 2 * max(length, reserved), 2.0)
    # Each time a row is full, all it holds moves: reserved, twice as many, four times, ...
    return Cell(row_len, length, row_len - reserved)


def _row(canvas: Canvas, y: float, length: int, cell: Cell, row_bytes: int, chosen: bool) -> None:
    used = _BAR * cell.held / cell.row_len
    canvas.text(_LEFT - 10, y + 13, f"{length:,}", "end", bold=chosen)
    canvas.rect(_LEFT, y, used, 16, "used")
    canvas.rect(_LEFT + used, y, _BAR - used, 16, "wasted")
    refused = length - cell.held
    past = f"-{refused:,}" if refused else f"{cell.moved:,}" if cell.moved else "-"
    figures = (
        (_LEFT + _BAR + 58, f"{100 * (1 - cell.held / cell.row_len):.1f} %"),
        (_LEFT + _BAR + 138, f"{row_bytes / 1e6:,.0f} MB"),
        (WIDTH - MARGIN, past),
    )
    for x, words in figures:
        canvas.text(x, y + 13, words, "end", bold=chosen)


def _verdict(length: int, cell: Cell, beyond: str, moved_bytes: int) -> str:
    empty = f"{length:,} tokens: {cell.row_len - cell.held:,} of {cell.row_len:,} slots stay empty"
    if cell.held < length:
        return f"{empty}, and {length - cell.held:,} tokens are refused."
    if not cell.moved:
        return f"{empty}. Nothing moves."
    ways = {"grow": f"copied, {format_bytes(moved_bytes)}", "recompute": "computed again"}
    return f"{empty}. {cell.moved:,} tokens were {ways[beyond]}."


@drawing(
    reserved=Slider([256, 512, 1024, 2048, 4096, 8192], 2048, "reserved (tokens)", "{:,}"),
    beyond=Choice(list(BEYOND), "grow", "past the end", BEYOND),
    length=Slider(LENGTHS, 128, "explain the row of (tokens)", "{:,}"),
    model=Choice(["SmolLM2-135M", "Qwen2.5-7B", "Llama-3-8B"], "Llama-3-8B", "model"),
)
def table_explorer(reserved: int, beyond: str, length: int, model: str) -> str:
    """Draws the table of waste by length for one reservation, and explains one row of it."""
    kv = published(model).kv
    cells = {n: outcome(n, reserved, beyond) for n in LENGTHS}
    chosen = cells[length]
    moved_bytes = chosen.moved * int(kv.bytes_per_token("bfloat16"))
    verdict = _verdict(length, chosen, beyond, moved_bytes)
    canvas = Canvas(
        "table_explorer",
        372,
        f"Rows that reserve {reserved:,} tokens",
        f"One line for each length from {LENGTHS[0]} to {LENGTHS[-1]:,} tokens: the share of its "
        f"row that stays empty, the bytes of the row, and what its end costs. {verdict}",
        under=f"{model} in bfloat16; past the end: {BEYOND[beyond]}",
    )
    heads = {"refuse": "refused", "grow": "copied", "recompute": "again"}
    titles = ((_LEFT - 10, "tokens"), (_LEFT + _BAR + 58, "empty"), (_LEFT + _BAR + 138, "row"))
    for x, words in (*titles, (WIDTH - MARGIN, heads[beyond])):
        canvas.text(x, _TOP - 10, words, "end", role="faint")
    for line, (n, cell) in enumerate(cells.items()):
        row_bytes = int(kv.bytes_per_sequence(cell.row_len, "bfloat16"))
        _row(canvas, _TOP + 22 * line, n, cell, row_bytes, n == length)
    canvas.key(MARGIN, 320, "used", "holds a token")
    canvas.key(MARGIN + 142, 320, "wasted", "reserved and empty")
    canvas.paragraph(344, verdict, bold=True)
    return canvas.svg()
