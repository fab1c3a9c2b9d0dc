"""The same eight requests and the same memory: how many more fit when the cache has fewer bits.

In a notebook the widget also allocates and fills the real cache; see `kvlib.show.real_cache`.
"""

from __future__ import annotations

from functools import cache

from kvlib.paged_ledger import PagedLedger
from kvlib.precision import Precision, cache_bytes
from kvlib.show.drawings.cache_rows import HEAD_DIM, KV_HEADS, LAYERS, LONGEST, Row
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.paged_rows import fill
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.sizes import KVShape

SHAPE, BLOCK, NUM_SEQS = KVShape(LAYERS, KV_HEADS, HEAD_DIM), 32, 8
FORMATS: dict[str, tuple[Precision, Precision] | None] = {
    "float16": None,
    "int8": (Precision(8, along="channel"), Precision(8)),
    "fp8": (Precision(kind="fp8"), Precision(kind="fp8")),
    "int4": (Precision(4, along="channel"), Precision(4, 32)),
    "int2": (Precision(2, along="channel"), Precision(2, 32)),
}


def bytes_of(name: str, num_blocks: int) -> int:
    """Returns the bytes of a cache with so many usable blocks, rows of full precision included.

    Example:
        A float16 cache allocates one block more, for padding:

        >>> bytes_of("float16", 1) == 2 * SHAPE.bytes_per_block(BLOCK, "float16")
        True
    """
    formats = FORMATS[name]
    if formats is None:
        return (num_blocks + 1) * SHAPE.bytes_per_block(BLOCK, "float16")
    return cache_bytes(SHAPE, num_blocks, BLOCK, *formats, num_seqs=NUM_SEQS, full_bytes=2)


def blocks_in(name: str, megabytes: int) -> int:
    """Returns how many usable blocks so many million bytes hold.

    Example:
        >>> blocks_in("float16", 48), blocks_in("int8", 48)
        (64, 104)
    """
    none, one = bytes_of(name, 0), bytes_of(name, 1)
    return (megabytes * 10**6 - none) // (one - none)


@cache
def admit(name: str, megabytes: int) -> tuple[Row, ...]:
    """Returns what becomes of the eight requests."""
    return fill(PagedLedger(blocks_in(name, megabytes), BLOCK))


@drawing(
    megabytes=Slider([12, 18, 24, 48], 24, "memory (MB)"),
    precision=Choice(tuple(FORMATS), "int8", "keys and values in"),
)
def quantized_cache(megabytes: int, precision: str) -> str:
    """Draws eight chat requests meeting a cache of chosen bytes in a chosen precision."""
    rows, blocks = admit(precision, megabytes), blocks_in(precision, megabytes)
    held = sum(row.held for row in rows)
    refused = sum(row.wanted - row.held for row in rows)
    admitted = sum(row.admitted for row in rows)
    taken, plain = bytes_of(precision, blocks), blocks_in("float16", megabytes)
    verdict = f"{admitted} of 8 requests admitted, {refused:,} tokens refused."
    canvas = Canvas(
        "quantized_cache",
        318,
        f"{megabytes} MB of keys and values in {precision}",
        f"Eight requests, one bar each. {verdict} {held:,} tokens are stored in {blocks:,} blocks "
        f"of {BLOCK}; in float16 the same memory holds {plain:,} blocks.",
        under="SmolLM2-135M; eight requests, nobody leaves",
    )
    scale = (ROOM - 80) / LONGEST
    for place, row in enumerate(rows):
        y = 62 + 19 * place
        canvas.rect(MARGIN, y, row.wanted * scale, 14, "paper", "faint")
        canvas.rect(MARGIN, y, row.held * scale, 14, "used")
        words = f"{row.held:,}" if row.admitted else "no room"
        canvas.text(WIDTH - MARGIN, y + 12, words, "end", role="ink" if row.admitted else "faint")
    canvas.key(MARGIN, 236, "used", "stored")
    canvas.key(MARGIN + 100, 236, "paper", "refused")
    canvas.text(MARGIN, 264, f"{taken:,} bytes, {blocks:,} blocks of {BLOCK}", bold=True)
    more = f"{blocks / plain:.2f} times the blocks of float16; rows and scales counted."
    canvas.text(MARGIN, 284, more)
    canvas.text(MARGIN, 304, verdict)
    return canvas.svg()
