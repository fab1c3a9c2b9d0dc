"""Conversations that grow out of one another, in whole hashed blocks and in a tree of tokens."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kvlib.blocks import BlockPool
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.radix import RadixTree
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, Canvas

# Every letter is a token.
PROMPTS = (
    "Be brief.Hi!",
    "Be brief.Hi!Hey.Bye",
    "Be brief.How?",
    "Be brief.Hi!Hey.Why?",
    "Be brief.How?So.Thx",
    "Be bold.Hi!",
    "Be brief.Hi!Hey.ByeOk.Yo",
    "Be brief.Hi!",
)
_GAP = 16
_CELL = (ROOM - _GAP) / 2 / max(map(len, PROMPTS))
_TOP, _LANE = 106, 26


class Run(NamedTuple):
    """Neighbouring tokens that an index keeps as one: a block, or a node of the tree.

    Attributes:
        first: the place of its first token in every prompt that has it.
        pieces: its blocks, each with the prompt that computed it, the first being 0.
        above: the prompt that computed what stands before it; None at the start.
    """

    first: int
    pieces: tuple[tuple[int, int], ...]
    above: int | None


class Known(NamedTuple):
    """What an index knows after some prompts, and what the last of them found.

    Attributes:
        runs: its blocks or nodes.
        found: the blocks that the last prompt found.
        tokens: found by each prompt.
    """

    runs: tuple[Run, ...]
    found: tuple[int, ...]
    tokens: tuple[int, ...]


@cache
def known(request: int, block_size: int, tree: bool) -> Known:
    """Serves the first prompts one after another and returns what is known then.

    Example:
        The third prompt has ten tokens in common with the first.

        >>> known(3, 4, tree=False).tokens[2], known(3, 1, tree=True).tokens[2]
        (8, 10)
    """
    pool = BlockPool(512)
    index = RadixTree(pool) if tree else HashIndex(pool)
    owner: dict[int, int] = {}
    place: dict[int, tuple[int, int | None]] = {}
    tokens = []
    for number, prompt in enumerate(PROMPTS[:request]):
        content = TokenContent(map(ord, prompt), block_size)
        found = index.find(content, (len(prompt) - 1) // block_size)
        pool.share(found)
        blocks = found + pool.allocate(content.num_blocks - len(found))
        known_before = index.find(content, content.num_blocks)
        index.insert(content, blocks, len(found))
        for i in range(len(known_before), len(blocks)):
            above = blocks[:i] if len(found) == len(known_before) else known_before
            place[blocks[i]] = (i, owner[above[i - 1]] if i else None)
            owner[blocks[i]] = number
        pool.free(blocks)
        index.released(content, blocks)
        tokens.append(len(found) * block_size)
    nodes = [node.blocks for node in index.nodes] if tree else [[block] for block in owner]
    runs = [
        Run(place[b[0]][0] * block_size, tuple((x, owner[x]) for x in b), place[b[0]][1])
        for b in nodes
    ]
    return Known(tuple(sorted(runs)), tuple(found), tuple(tokens))


def _panel(canvas: Canvas, left: float, request: int, size: int, state: Known) -> None:
    """Draws each run once, in the line of the prompt that computed its end."""
    spots = []
    for run in state.runs:
        lane = run.pieces[-1][1]
        x, y = left + run.first * _CELL, _TOP + lane * _LANE
        spots.append((run, lane, x, y))
        if run.above not in (None, lane):
            canvas.line([(x, _TOP + run.above * _LANE + 20), (x, y + 10)], "faint", 1.2)
    for run, lane, x, y in spots:
        length = len(run.pieces) * size
        canvas.rect(x, y, length * _CELL - 1.5, 20, "paper", "faint")
        for i, (block, owner) in enumerate(run.pieces):
            role = "cached" if block in state.found else "prefill" if owner == request - 1 else ""
            if role:
                width = size * _CELL - (1.5 if i == len(run.pieces) - 1 else 0)
                canvas.rect(x + i * size * _CELL, y + 15, width, 5, role)
        for i, letter in enumerate(PROMPTS[lane][run.first : run.first + length]):
            canvas.text(x + (i + 0.5) * _CELL - 0.7, y + 12, letter, "middle", size=10.5)


@drawing(
    request=Slider(range(1, len(PROMPTS) + 1), 7, "prompts so far"),
    block_size=Slider([1, 2, 4, 8], 4, "block size of the hash index (tokens)"),
)
def conversation_tree(request: int, block_size: int) -> str:
    """Draws what two indexes know after some prompts, and what the last prompt found in each."""
    prompt = PROMPTS[request - 1]
    sides = (known(request, block_size, tree=False), known(request, 1, tree=True))
    hashed, single = (side.tokens[-1] for side in sides)
    title = f"Prompt {request}: found {hashed} in blocks, {single} in the tree"
    whole = [sum(side.tokens) for side in sides]
    asked = sum(map(len, PROMPTS[:request]))
    figures = (
        f"Blocks of {block_size} find {hashed} of its {len(prompt)} tokens, the tree {single}.",
        f"So far {whole[0]} and {whole[1]} of {asked} tokens. Known: {len(sides[0].runs)} blocks;"
        f" {len(sides[1].runs)} nodes with {sum(len(r.pieces) for r in sides[1].runs)} tokens.",
    )
    low = _TOP + _LANE * request + 24
    canvas = Canvas(
        "conversation_tree",
        low + 96,
        title,
        f"Two trees of prompts, every letter a token; the last prompt is {prompt!r}. "
        f"{' '.join(figures)} A block is found whole or not at all; a node of the tree is split "
        "where prompts part.",
        under=f"\u201c{prompt}\u201d; every letter is a token",
    )
    middle = MARGIN + (ROOM + _GAP) / 2
    canvas.text(MARGIN, 78, f"hash, blocks of {block_size}", bold=True)
    canvas.text(middle, 78, "radix tree, tokens", bold=True)
    canvas.line([(middle - _GAP / 2, 66), (middle - _GAP / 2, low - 20)], "rule")
    _panel(canvas, MARGIN, request, block_size, sides[0])
    _panel(canvas, middle, request, 1, sides[1])
    canvas.key(MARGIN, low, "cached", "found by this prompt")
    canvas.key(MARGIN + 170, low, "prefill", "computed by it, and now known")
    y = canvas.paragraph(low + 28, figures[0], bold=True)
    canvas.paragraph(y, figures[1])
    return canvas.svg()
