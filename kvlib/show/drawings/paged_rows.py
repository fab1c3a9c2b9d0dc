"""The same eight requests meeting a paged cache: blocks as they are needed, and what is refused."""

from __future__ import annotations

from functools import cache

from kvlib.paged_ledger import PagedLedger
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.show.drawings.cache_rows import HEAD_DIM, KV_HEADS, LAYERS, LONGEST, Row
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.sizes import KVShape
from kvlib.workloads import sample


def fill(holder: object, store: object = None) -> tuple[Row, ...]:
    """Brings eight chat requests to a paged ledger or cache; nobody leaves.

    A prompt is stored whole or not at all; an answer goes on until no block is free.

    Args:
        holder: an empty `PagedLedger` or `PagedKVCache`.
        store: called with a sequence and a number of tokens to store them in one step; by default
            the step is planned and committed without bytes.
    """
    if store is None:

        def store(seq_id: int, num_tokens: int) -> None:
            holder.commit(holder.plan({seq_id: [0] * num_tokens}))

    rows = []
    for seq_id, request in enumerate(sample("azure-conv", 8, seed=0)):
        prompt, answer = request.prompt_tokens, request.output_tokens
        holder.add(seq_id)
        try:
            store(seq_id, prompt)
        except (OutOfBlocks, SequenceTooLong):
            holder.free(seq_id)
            rows.append(Row(prompt + answer, prompt, 0, False))
            continue
        ledger = getattr(holder, "ledger", holder)
        room = ledger.num_free * ledger.block_size + -prompt % ledger.block_size
        store(seq_id, min(answer, room))
        rows.append(Row(prompt + answer, prompt, prompt + min(answer, room), True))
    return tuple(rows)


@cache
def admit(num_blocks: int, block_size: int) -> tuple[Row, ...]:
    """Returns what becomes of the eight requests in so many blocks.

    Example:
        >>> [row.held for row in admit(64, 16)]
        [621, 0, 0, 400, 0, 0, 0, 0]
    """
    return fill(PagedLedger(num_blocks, block_size))


@drawing(
    num_blocks=Slider([16, 64, 128, 256, 512, 1024], 256, "cache size (blocks)", "{:,}"),
    block_size=Slider([1, 8, 16, 32, 64, 256], 16, "block size (tokens)"),
)
def paged_cache(num_blocks: int, block_size: int) -> str:
    """Draws eight chat requests meeting a paged cache of a chosen size."""
    rows, slots = admit(num_blocks, block_size), num_blocks * block_size
    held = sum(row.held for row in rows)
    taken = sum(-(-row.held // block_size) for row in rows) * block_size
    refused = sum(row.wanted - row.held for row in rows)
    admitted = sum(row.admitted for row in rows)
    verdict = f"{admitted} of 8 requests admitted, {refused:,} tokens refused."
    canvas = Canvas(
        "paged_cache",
        352,
        f"A paged cache of {num_blocks:,} blocks of {block_size} slots",
        f"Eight requests, one bar each. {verdict} {held:,} of {slots:,} slots hold a token, "
        f"{taken - held:,} are the rest of a last block, {slots - taken:,} are free.",
        under="SmolLM2-135M in float16; eight requests, nobody leaves",
    )
    scale = (ROOM - 80) / LONGEST
    for place, row in enumerate(rows):
        y, in_blocks = 62 + 19 * place, -(-row.held // block_size) * block_size
        canvas.rect(MARGIN, y, row.held * scale, 14, "used")
        if in_blocks > row.held:
            canvas.rect(MARGIN + row.held * scale, y, (in_blocks - row.held) * scale, 14, "wasted")
        if lost := row.wanted - row.held:
            left = MARGIN + in_blocks * scale
            width = min(lost * scale, MARGIN + ROOM - 50 - left)
            canvas.rect(left, y, max(width, 1), 14, "paper", "faint")
        words = f"{row.held:,}" if row.admitted else "no room"
        role = "ink" if row.admitted else "faint"
        canvas.text(WIDTH - MARGIN, y + 12, words, "end", role=role)
    table = (
        ("used", "hold a token", held, held / slots),
        ("wasted", "rest of a last block", taken - held, (taken - held) / slots),
        ("paper", "free for anybody", slots - taken, 1 - taken / slots),
    )
    rows_of_table = [(*r, f"{n:,}", f"{100 * share:.1f} %") for *r, n, share in table]
    canvas.table(236, WIDTH - 84, rows_of_table)
    token_bytes = KVShape(LAYERS, KV_HEADS, HEAD_DIM).bytes_per_token("float16")
    canvas.text(MARGIN, 306, f"{slots * token_bytes:,} bytes for keys and values", bold=True)
    canvas.text(MARGIN, 328, verdict)
    return canvas.svg()
