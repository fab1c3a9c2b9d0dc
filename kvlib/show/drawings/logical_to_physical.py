"""From position to slot: two sequences grow, and a table says where each token went."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kvlib.block_table import BlockTable
from kvlib.blocks import BlockPool
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, Canvas

SLOTS = 24
# Whose token comes at each step: a prompt of each, then one each in turns, then only the first.
STEPS = "aaabbbbabababaaab"
_CELL, _LEFT = 23, MARGIN + 24
_SLOT = ROOM / SLOTS
_ROWS = {"a": 70, "b": 138}
_MEMORY = 218


class Now(NamedTuple):
    """The tables after some steps.

    Attributes:
        blocks: the block ids of each sequence, in logical order.
        lengths: how many tokens each has.
        took: whether the last token took a block.
    """

    blocks: dict[str, tuple[int, ...]]
    lengths: dict[str, int]
    took: bool


@cache
def after(step: int, block_size: int) -> Now:
    """Returns the tables after so many tokens; the pool hands out blocks in no order.

    >>> after(4, 4).blocks, after(8, 4).took
    ({'a': (1,), 'b': (3,)}, False)
    """
    count = SLOTS // block_size
    pool = BlockPool(count)
    pool.allocate(count)
    # The block freed last is handed out first, so a pool that was in use has no order.
    pool.free(sorted(range(count), key=lambda block: (7 * block + 4) % 11))
    tables = {name: BlockTable(pool, block_size) for name in "ab"}
    took = False
    for name in STEPS[:step]:
        took = tables[name].append(1).num_new > 0
    return Now(
        {name: table.block_ids for name, table in tables.items()},
        {name: table.num_tokens for name, table in tables.items()},
        took,
    )


def _sequence(canvas: Canvas, name: str, now: Now, block_size: int, active: bool) -> None:
    """Draws a sequence's positions, and below them its block table."""
    y, length = _ROWS[name], now.lengths[name]
    canvas.text(MARGIN, y + 16, name, bold=True)
    if not length:
        canvas.text(_LEFT, y + 16, "no token, no block", role="faint")
    for index, block in enumerate(now.blocks[name]):
        for position in range(index * block_size, (index + 1) * block_size):
            x = _LEFT + position * _CELL
            last = active and position == length - 1
            role = "decode" if last else "paper" if position < length else "reserved"
            canvas.rect(x, y, _CELL - 2, 22, role, "faint")
            if position < length and not last:
                canvas.text(x + _CELL / 2 - 1, y + 15, str(position), "middle", size=11)
        x, width = _LEFT + index * block_size * _CELL, block_size * _CELL - 2
        last = active and index == (length - 1) // block_size
        canvas.rect(x, y + 24, width, 20, "paper", "decode" if last else "rule")
        canvas.text(x + width / 2, y + 38, str(block), "middle", size=11, bold=last)


def _memory(canvas: Canvas, now: Now, block_size: int, slot: int) -> None:
    """Draws all slots by address, and which block each run of them is."""
    for block in range(SLOTS // block_size):
        x, width = MARGIN + block * block_size * _SLOT, block_size * _SLOT
        canvas.rect(x, _MEMORY, width, 26, "paper", "faint")
        canvas.text(x + width / 2, _MEMORY + 40, str(block), "middle", size=11, role="faint")
    for name, blocks in now.blocks.items():
        for position in range(len(blocks) * block_size):
            at = blocks[position // block_size] * block_size + position % block_size
            x, there = MARGIN + at * _SLOT, position < now.lengths[name]
            role = "decode" if at == slot else "paper" if there else "reserved"
            canvas.rect(x, _MEMORY, _SLOT, 26, role, "faint")
            if there and at != slot:
                canvas.text(x + _SLOT / 2, _MEMORY + 17, f"{name}{position}", "middle", size=11)


@drawing(
    step=Slider(range(1, len(STEPS) + 1), 14, "tokens so far"),
    block_size=Slider([1, 2, 4, 8], 4, "block size (tokens)"),
)
def logical_to_physical(step: int, block_size: int) -> str:
    """Draws two growing sequences, their block tables, and the slot of the newest token."""
    now, name = after(step, block_size), STEPS[step - 1]
    position = now.lengths[name] - 1
    logical, offset = divmod(position, block_size)
    block = now.blocks[name][logical]
    slot = block * block_size + offset
    sums = (
        f"position {position} = {logical} \u00d7 {block_size} + {offset}",
        f"table[{logical}] = {block}",
        f"slot {block} \u00d7 {block_size} + {offset} = {slot}",
    )
    verdict = (
        f"A block was taken: block {block}."
        if now.took
        else "No block was taken: the last one had room."
    )
    held = sum(len(blocks) * block_size for blocks in now.blocks.values()) - step
    canvas = Canvas(
        "logical_to_physical",
        396,
        f"Position {position} of sequence {name} is in slot {slot}",
        f"Sequences a and b hold {now.lengths['a']} and {now.lengths['b']} tokens. The table of a "
        f"is {now.blocks['a']}, that of b {now.blocks['b']}. {'; '.join(sums)}. {verdict}",
        under="Positions, and below them the block table",
    )
    for each in _ROWS:
        _sequence(canvas, each, now, block_size, each == name)
    canvas.text(
        MARGIN, _MEMORY - 10, f"Memory: {SLOTS} slots, and the blocks they are", role="faint"
    )
    _memory(canvas, now, block_size, slot)
    for line, words in enumerate(sums):
        canvas.text(MARGIN, 288 + 20 * line, words, bold=True)
    canvas.paragraph(350, verdict)
    canvas.key(MARGIN, 378, "decode", "newest token")
    canvas.key(MARGIN + 128, 378, "reserved", f"held, no token yet: {held}")
    return canvas.svg()
