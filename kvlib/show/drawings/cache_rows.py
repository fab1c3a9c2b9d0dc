"""The rows of a contiguous cache under the same eight requests: what a cache size buys and refuses.

In a notebook the widgets of this module also fill a real cache of the same size; see
`kvlib.show.real_cache`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kvlib.show.drawings.alignment import aligned_bytes
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.sizes import DTYPE_BYTES, KVShape
from kvlib.workloads import sample

LAYERS, KV_HEADS, HEAD_DIM = 30, 3, 64  # SmolLM2-135M
LONGEST = 4608
_SIZES = Slider([256, 512, 1024, 2048, 4096], 1024, "cache size (tokens per row)", "{:,}")


class Row(NamedTuple):
    """What became of one request.

    Attributes:
        wanted: tokens of its prompt and its answer.
        prompt: tokens of its prompt.
        held: tokens that are in a row of the cache.
        admitted: whether it got a row.
    """

    wanted: int
    prompt: int
    held: int
    admitted: bool


@cache
def admit(cache_size: int, num_seqs: int) -> tuple[Row, ...]:
    """Returns what becomes of eight requests of a chat service when nobody leaves.

    A prompt is stored whole or not at all; an answer goes on until its row is full.

    Example:
        >>> [row.held for row in admit(1024, 2)]
        [621, 861, 0, 0, 0, 0, 0, 0]
    """
    rows, free = [], num_seqs
    for request in sample("azure-conv", 8, seed=0):
        wanted = request.prompt_tokens + request.output_tokens
        admitted = free > 0 and request.prompt_tokens <= cache_size
        free -= admitted
        held = min(wanted, cache_size) if admitted else 0
        rows.append(Row(wanted, request.prompt_tokens, held, admitted))
    return tuple(rows)


def row_bytes(head_dim: int, dtype: str, alignment: int) -> int:
    """Returns the bytes from one token's row of a head to the next, aligned.

    >>> row_bytes(100, "float32", 256), row_bytes(100, "float32", 1)
    (512, 400)
    """
    return aligned_bytes(head_dim * int(DTYPE_BYTES[dtype]), alignment)


def _draw(name: str, cache_size: int, num_seqs: int, token_bytes: int, note: str) -> str:
    rows = admit(cache_size, num_seqs)
    held = sum(row.held for row in rows)
    refused = sum(row.wanted - row.held for row in rows)
    admitted = sum(row.admitted for row in rows)
    slots = num_seqs * cache_size
    verdict = f"{admitted} of 8 requests admitted, {refused:,} tokens refused."
    canvas = Canvas(
        name,
        330,
        f"A cache of {num_seqs} rows of {cache_size:,} slots",
        f"Eight requests, one bar each. {verdict} {held:,} of {slots:,} slots hold a token.",
        under=note,
    )
    scale = (ROOM - 80) / LONGEST
    for place, row in enumerate(rows):
        y = 62 + 19 * place
        canvas.rect(MARGIN, y, row.held * scale, 14, "used")
        if row.admitted:
            rest = (cache_size - row.held) * scale
            canvas.rect(MARGIN + row.held * scale, y, rest, 14, "reserved", "faint")
        lost = row.wanted - row.held
        left = MARGIN + (cache_size * scale if row.admitted else 0)
        if lost:
            canvas.rect(left, y, min(lost * scale, MARGIN + ROOM - left), 14, "paper", "wasted")
        words = (
            f"{row.held:,}"
            if row.admitted
            else ("no row" if row.prompt <= cache_size else "too long")
        )
        canvas.text(WIDTH - MARGIN, y + 12, words, "end", role="ink" if row.admitted else "faint")
    table = (
        ("used", "hold a token", held, held / slots),
        ("reserved", "reserved and empty", slots - held, 1 - held / slots),
        ("paper", "refused tokens (outlined)", refused, refused / (refused + held)),
    )
    rows_of_table = [(*r, f"{n:,}", f"{100 * share:.1f} %") for *r, n, share in table]
    canvas.table(236, WIDTH - 84, rows_of_table)
    canvas.text(MARGIN, 306, f"{slots * token_bytes:,} bytes for keys and values", bold=True)
    return canvas.svg()


@drawing(cache_size=_SIZES, num_seqs=Slider([1, 2, 3, 4, 6, 8], 4, "rows (sequences at once)"))
def contiguous_cache(cache_size: int, num_seqs: int) -> str:
    """Draws eight chat requests meeting a contiguous cache of a chosen size."""
    token_bytes = KVShape(LAYERS, KV_HEADS, HEAD_DIM).bytes_per_token("float16")
    note = "SmolLM2-135M in float16; eight requests, nobody leaves"
    return _draw("contiguous_cache", cache_size, num_seqs, token_bytes, note)


@drawing(
    cache_size=_SIZES,
    head_dim=Slider([64, 80, 96, 100, 128], 80, "head_dim (numbers per row)"),
    dtype=Choice(["float16", "float32"], "float16", "dtype"),
    alignment=Slider([4, 16, 64, 128, 256, 1024], 64, "row alignment (bytes)", "{:,}"),
)
def aligned_cache(cache_size: int, head_dim: int, dtype: str, alignment: int) -> str:
    """Draws the same requests with four rows whose strides are aligned in bytes."""
    stride, logical = row_bytes(head_dim, dtype, alignment), row_bytes(head_dim, dtype, 1)
    note = f"rows of {logical:,} B every {stride:,} B: {100 * (1 - logical / stride):.1f} % padding"
    return _draw("aligned_cache", cache_size, 4, 2 * LAYERS * KV_HEADS * stride, note)
