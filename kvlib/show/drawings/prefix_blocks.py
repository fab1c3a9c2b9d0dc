"""Requests one after another on a small prefix cache: keys, hits, and what is given up next."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import NamedTuple

from kvlib.blocks import BlockPool
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.retention import RankedFIFO, RankedLFU
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

BLOCK_SIZE = 4
# Whole blocks of each prompt; behind them every prompt has one token more.
PROMPTS = (
    "S1 S2 Qa",
    "S1 S2 Qb",
    "S1 S2 Qa Aa Qc",
    "D1 D2 D3 D4",
    "S1 S2 Qb Ab Qd",
    "S1 S2 Qe",
    "S1 S2 Qa Aa Qc Ac",
    "Qa Aa Qc",
    "D1 D2 D3 D4",
    "S1 S2 Qb Ab Qd Ad",
)
POLICIES = {
    "tail": "used longest ago, end first",
    "head": "used longest ago, beginning first",
    "fifo": "known longest",
    "lfu": "used least",
}
_NAMES = sorted({name for prompt in PROMPTS for name in prompt.split()})
_BOX, _ROW = ROOM / 8, 46


class Shot(NamedTuple):
    """One request: its blocks, how many were found, what was lost, and what is left behind it.

    `line` is what is kept when it has left, what goes next at the front.
    """

    blocks: tuple[tuple[str, str], ...]
    found: int
    lost: tuple[tuple[str, str], ...]
    line: tuple[tuple[str, str], ...]
    empty: int


def _content(prompt: str) -> TokenContent:
    first = [BLOCK_SIZE * _NAMES.index(name) for name in prompt.split()]
    tokens = [token for start in first for token in range(start, start + BLOCK_SIZE)]
    return TokenContent([*tokens, BLOCK_SIZE * len(_NAMES)], BLOCK_SIZE)


def _drain(pool: BlockPool, index: HashIndex) -> list[int]:
    """The kept blocks in the order in which they would be lost; works on a copy."""
    pool, index = deepcopy((pool, index))
    order: list[int] = []
    inner = pool.on_evict
    pool.on_evict = lambda block_id: (order.append(block_id), inner(block_id))[1]
    for _ in range(pool.num_free):
        index.make_room(1)
        pool.allocate(1)
    return order


@cache
def shots(policy: str, num_blocks: int) -> tuple[Shot, ...]:
    """Returns what each request finds and leaves.

    Example:
        >>> [shot.found for shot in shots("tail", 16)[:3]]
        [0, 2, 3]
    """
    pool = BlockPool(num_blocks)
    index = HashIndex(pool, {"fifo": RankedFIFO, "lfu": RankedLFU}.get(policy, lambda: None)())
    names: dict[int, tuple[str, str]] = {}
    kept: list[int] = []
    run = []
    for prompt in PROMPTS:
        content = _content(prompt)
        whole = content.num_blocks
        found = index.find(content, (content.num_tokens - 1) // BLOCK_SIZE)
        pool.share(found)
        index.make_room(whole + 1 - len(found))
        blocks = found + pool.allocate(whole + 1 - len(found))
        gone = tuple(names[block_id] for block_id in kept if block_id in blocks[len(found) :])
        index.insert(content, blocks[:whole], start=len(found))
        keyed = [(name, content.key(i).hex()[:4]) for i, name in enumerate(prompt.split())]
        names.update(zip(blocks, keyed, strict=False))
        pool.free(blocks[::-1] if policy == "head" else blocks)
        index.released(content, blocks)
        kept = _drain(pool, index)
        line = tuple(names[block_id] for block_id in kept)
        run.append(Shot(tuple(keyed), len(found), gone, line, num_blocks - len(kept)))
    return tuple(run)


def _box(canvas: Canvas, place: int, y: float, names: tuple[str, str], role: str) -> None:
    x, top = MARGIN + place % 8 * _BOX, y + place // 8 * _ROW
    canvas.rect(x, top, _BOX - 5, 38, "paper", "faint")
    canvas.rect(x, top, 9, 38, role)
    canvas.text(x + 28, top + 16, names[0], "middle", bold=True)
    canvas.text(x + 28, top + 32, names[1], "middle", size=11.5)


@drawing(
    request=Slider(range(1, len(PROMPTS) + 1), 3, "request"),
    policy=Choice(list(POLICIES), "tail", "given up first", POLICIES),
    blocks=Slider(range(8, 20), 10, "blocks of 4 tokens"),
)
def prefix_blocks(request: int, policy: str, blocks: int) -> str:
    """Draws one request: its blocks with their keys, what it found, and what is kept behind it."""
    past = shots(policy, blocks)[:request]
    shot = past[-1]
    found, asked = sum(each.found for each in past), sum(len(each.blocks) for each in past)
    heading = f"Request {request}: {shot.found} of {len(shot.blocks)} blocks found"
    gone = ", ".join(" ".join(each) for each in shot.lost) or "nothing"
    so_far = f"So far {found} of {asked} blocks found, {100 * found / asked:.0f} %."
    asks = " ".join(name for name, _ in shot.blocks)
    line = ", ".join(" ".join(each) for each in shot.line)
    rows = -(-blocks // 8)
    low = 224 + _ROW * rows
    canvas = Canvas(
        "prefix_blocks",
        low + 36,
        heading,
        f"{heading}. It asks for {asks}. Lost for it: {gone}. Kept behind it, what goes next "
        f"first: {line}; {shot.empty} blocks are empty. {so_far}",
        under=f"{blocks} blocks; given up first: {POLICIES[policy]}",
    )
    for i, (role, words) in enumerate((("cached", "found, kept"), ("prefill", "computed"))):
        canvas.key(MARGIN + 106 * i, 74, role, words)
    canvas.text(WIDTH - MARGIN, 74, "a block's name, its key", "end", role="faint")
    for i, names in enumerate(shot.blocks):
        _box(canvas, i, 88, names, "cached" if i < shot.found else "prefill")
    lost = ", ".join(name for name, _ in shot.lost) or "nothing"
    canvas.text(MARGIN, 152, f"Lost for it: {lost}")
    behind = f"Left behind: {shot.empty} empty, then in the order of loss"
    canvas.text(MARGIN, 186, behind, bold=True)
    for i in range(blocks):
        if i < shot.empty:
            x, top = MARGIN + i % 8 * _BOX, 200 + i // 8 * _ROW
            canvas.rect(x, top, _BOX - 5, 38, "paper", "rule")
        else:
            _box(canvas, i, 200, shot.line[i - shot.empty], "cached")
    history = " ".join(f"{each.found}/{len(each.blocks)}" for each in past)
    canvas.paragraph(canvas.paragraph(low, so_far, bold=True), f"Each request: {history}")
    return canvas.svg()
