"""Rows of a cache in memory, packed and aligned: padding, lines touched, vector loads."""

from __future__ import annotations

from math import gcd

from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.sizes import DTYPE_BYTES, KVShape

LINE_BYTES = 64  # what a processor fetches at once; on a GPU 128, in sectors of 32
LOAD_BYTES = 16  # the widest load of one GPU thread, only from a multiple of 16
HEAD_DIMS = [64, 72, 80, 96, 100, 120, 128, 192, 256]
_SHAPE = {"num_layers": 32, "num_kv_heads": 8}
_WINDOW = 1024  # bytes drawn


def aligned_bytes(row_bytes: int, alignment: int) -> int:
    """Returns the distance between rows: the row rounded up to a multiple of the alignment.

    Example:
        >>> [aligned_bytes(size, 256) for size in (1000, 1024, 192)]
        [1024, 1024, 256]
    """
    return -(-row_bytes // alignment) * alignment


def lines_touched(row_bytes: int, stride: int) -> float:
    """Returns how many lines a row touches when it is read alone, on average over all rows.

    The first row starts at the beginning of a line.

    Example:
        Rows of 240 bytes end to end lie across 4 lines or 5, at the start of a line only 4:

        >>> lines_touched(240, 240), lines_touched(240, 256)
        (4.5, 4.0)
    """
    step = gcd(stride, LINE_BYTES)
    starts = range(0, LINE_BYTES, step)  # where in a line rows begin, each as often
    return sum(-(-(start + row_bytes) // LINE_BYTES) for start in starts) / len(starts)


def vector_loads(row_bytes: int, stride: int) -> int:
    """Returns how many loads a row takes, of at most 16 bytes, each from a multiple of its size.

    Example:
        Every other row of 200 bytes starts 8 bytes past a multiple of 16:

        >>> vector_loads(200, 200), vector_loads(200, 208)
        (25, 13)
    """
    return -(-row_bytes // gcd(stride, LOAD_BYTES))


def _strip(canvas: Canvas, y: float, row_bytes: int, stride: int) -> None:
    byte = ROOM / _WINDOW
    for start in range(0, _WINDOW, stride):
        used, end = min(start + row_bytes, _WINDOW), min(start + stride, _WINDOW)
        canvas.rect(MARGIN + start * byte, y, (used - start) * byte, 30, "used")
        canvas.rect(MARGIN + used * byte, y, (end - used) * byte, 30, "wasted")
        canvas.line([(MARGIN + start * byte, y - 3), (MARGIN + start * byte, y + 33)], "ink", 2)
    for edge in range(0, _WINDOW + 1, LINE_BYTES):
        x = MARGIN + edge * byte
        canvas.line([(x, y + 34), (x, y + (42 if edge % 256 == 0 else 38))], "faint")


def _verdict(row_bytes: int, stride: int) -> str:
    if stride == row_bytes:
        return "Packed rows are aligned already: nothing to pay, nothing to gain."
    more = f"{100 * (stride / row_bytes - 1):.1f} % more memory"
    loads = [vector_loads(row_bytes, each) for each in (row_bytes, stride)]
    lines = [lines_touched(row_bytes, each) for each in (row_bytes, stride)]
    gains = [f"{loads[0]} loads become {loads[1]}"] if loads[1] < loads[0] else []
    if lines[1] < lines[0]:
        gains.append(f"{lines[0]:.2f} lines become {lines[1]:.2f}")
    return f"{more}: {' and '.join(gains)}." if gains else f"{more}, and not one load or line less."


@drawing(
    head_dim=Slider(HEAD_DIMS, 100, "head_dim"),
    dtype=Choice(["float32", "bfloat16", "int8"], "bfloat16", "dtype"),
    alignment=Slider([1, 16, 64, 128, 256, 1024], 64, "alignment (bytes)", "{:,}"),
)
def alignment_bytes(head_dim: int, dtype: str, alignment: int) -> str:
    """Draws the first rows of a cache, packed above and aligned below, and what each costs."""
    row_bytes = int(head_dim * DTYPE_BYTES[dtype])
    stride = aligned_bytes(row_bytes, alignment)
    verdict, padding = _verdict(row_bytes, stride), 100 * (1 - row_bytes / stride)
    canvas = Canvas(
        "alignment_bytes",
        362,
        f"Rows of {head_dim} numbers, {row_bytes:,} bytes",
        f"Two strips of {_WINDOW:,} bytes: rows of {row_bytes:,} bytes end to end, and the same "
        f"rows {stride:,} bytes apart, so that {padding:.1f} % is padding. {verdict}",
        under=f"The first {_WINDOW:,} bytes of a head, with a tick every {LINE_BYTES}",
    )
    for y, words, each in ((84, "packed", row_bytes), (152, f"aligned to {alignment:,}", stride)):
        canvas.text(MARGIN, y - 8, words, bold=True)
        _strip(canvas, y, row_bytes, each)
    canvas.key(WIDTH - 188, 76, "used", "numbers")
    canvas.key(WIDTH - 92, 76, "wasted", "padding")
    token = KVShape(head_dim=head_dim, **_SHAPE).bytes_per_token(dtype) / row_bytes
    measures = (
        ("bytes from row to row", lambda each: f"{each:,}"),
        ("padding", lambda each: f"{100 * (1 - row_bytes / each):.1f} %"),
        ("KiB a token (32 layers, 8 KV heads)", lambda each: f"{token * each / 1024:,.1f}"),
        ("vector loads of a row", lambda each: f"{vector_loads(row_bytes, each)}"),
        ("lines a row touches, read alone", lambda each: f"{lines_touched(row_bytes, each):.2f}"),
    )
    for line, (words, figure) in enumerate(measures):
        y = 222 + 20 * line
        canvas.text(MARGIN, y, words)
        canvas.text(WIDTH - 96, y, figure(row_bytes), "end")
        canvas.text(WIDTH - MARGIN, y, figure(stride), "end", bold=True)
    canvas.paragraph(330, verdict, bold=True)
    return canvas.svg()
