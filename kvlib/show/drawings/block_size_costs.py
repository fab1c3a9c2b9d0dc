"""Four costs of a block size at once: empty slots, table entries, kernel time, prefix tokens lost.

The first two and the last are counted here. Kernel times are measured: `measure/block_speed.py`
leaves them in `kvlib/data/block_speed.json`, as times that of the same kernel on contiguous rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import takewhile
from math import fsum, log2
from typing import NamedTuple

from kvlib.block_table import num_blocks_for
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas
from kvlib.workloads import conversations, sample

BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
LENGTHS = ("azure-conv", "azure-code", "arxiv", "mooncake-conv")
REQUESTS = 500
_WIDE, _HIGH, _DOWN = 180, 74, 142


class Costs(NamedTuple):
    """What one block size costs.

    Attributes:
        empty: percent of the slots held that stay empty, when requests have their final length.
        entries: table entries of a request on average.
        kernel: time of attention, as times that on contiguous rows.
        lost: percent of the shareable prompt tokens that are not found, for ends of blocks.
    """

    empty: float
    entries: float
    kernel: float
    lost: float


@cache
def finals(lengths: str) -> tuple[int, ...]:
    """Returns the final lengths of a sample of a trace."""
    return tuple(r.prompt_tokens + r.output_tokens for r in sample(lengths, REQUESTS, seed=0))


def empty_share(lengths: Sequence[int], block_size: int) -> float:
    """Returns what part of all slots in blocks holds no token.

    >>> empty_share([5, 9, 12], 4)
    0.1875
    """
    held = block_size * sum(num_blocks_for(n, block_size) for n in lengths)
    return 1 - sum(lengths) / held


def _same(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


@cache
def shareable() -> tuple[int, ...]:
    """Returns how many tokens of each prompt an earlier text begins with, the last one left out."""
    found, texts = [], []
    for each in conversations(0, system_tokens=512, user_tokens=128, output_tokens=256):
        prompt = each.token_ids[: each.prompt_tokens - 1]
        alike = (takewhile(_same, zip(prompt, text, strict=False)) for text in texts)
        found.append(max((len(list(run)) for run in alike), default=0))
        texts.append(each.token_ids)
    return tuple(found)


@cache
def kernel_times() -> dict[int, float]:
    """Returns the measured times by block size."""
    text = (files("kvlib") / "data" / "block_speed.json").read_text(encoding="utf-8")
    return {int(size): times for size, times in json.loads(text)["kernel_takes_times"].items()}


@cache
def costs(lengths: str, block_size: int) -> Costs:
    """Returns the four costs of a block size.

    >>> costs("azure-conv", 1)[0], costs("azure-conv", 1)[3]
    (0.0, 0.0)
    """
    held = finals(lengths)
    entries = fsum(num_blocks_for(n, block_size) for n in held) / len(held)
    kept = sum(n // block_size * block_size for n in shareable())
    lost = 1 - kept / sum(shareable())
    empty = empty_share(held, block_size)
    return Costs(100 * empty, entries, kernel_times()[block_size], 100 * lost)


def _panel(
    canvas: Canvas, at: int, title: str, words: str, values: list[float], here: int, role: str
) -> None:
    """Draws one cost against the block size, and where the slider stands."""
    left = MARGIN + (at % 2) * (WIDTH // 2)
    top = 90 + (at // 2) * _DOWN
    low = top + _HIGH
    step = _WIDE / (len(values) - 1)
    canvas.text(left, top - 22, title, size=12, role="faint")
    canvas.text(left, top - 5, words, bold=True)
    canvas.line([(left, low), (left + _WIDE, low)], "rule")
    heights = [(_HIGH - 12) * value / max(values) for value in values]
    points = [(left + i * step, low - height) for i, height in enumerate(heights)]
    canvas.line(points, role, 2.5)
    x, y = points[here]
    canvas.line([(x, low), (x, y)], "ink", 1, dash="3 3")
    canvas.rect(x - 4, y - 4, 8, 8, role, "ink")
    for i, size in enumerate(BLOCK_SIZES):
        canvas.text(left + i * step, low + 15, f"{size}", "middle", size=11)


@drawing(
    block_size=Slider(BLOCK_SIZES, 16, "block size (tokens)"),
    lengths=Choice(LENGTHS, "azure-conv", "lengths"),
)
def block_size_costs(block_size: int, lengths: str) -> str:
    """Draws the four costs over all block sizes, with the chosen one marked."""
    rows = [costs(lengths, size) for size in BLOCK_SIZES]
    here = BLOCK_SIZES.index(block_size)
    now = rows[here]
    panels = (
        ("Empty slots in last blocks", f"{now.empty:.2f} %", "wasted"),
        ("Table entries a request (log)", f"{now.entries:,.1f}", "reserved"),
        ("Kernel time, contiguous = 1", f"{now.kernel:.2f}", "decode"),
        ("Shareable prompt tokens lost", f"{now.lost:.1f} %", "cached"),
    )
    seen = "; ".join(f"{title.lower()}: {words}" for title, words, _ in panels)
    mean = fsum(finals(lengths)) / REQUESTS
    canvas = Canvas(
        "block_size_costs",
        386,
        f"Four costs of blocks of {block_size}",
        f"Four small curves over block sizes 1 to 256, with {block_size} marked. {seen}. Two costs "
        "rise with the block size and two fall: the choice lies where none is large.",
        f"Blocks of {block_size} token{'s' * (block_size > 1)}: four costs",
        f"{lengths} sample, {mean:,.0f} tokens a request on average",
    )
    for at, (title, words, role) in enumerate(panels):
        values = [row[at] for row in rows]
        # Entries halve with every doubling: on a linear axis only the first would be seen.
        heights = [log2(value) for value in values] if at == 1 else values
        _panel(canvas, at, title, words, heights, here, role)
    canvas.paragraph(
        348,
        "Counted: sampled lengths, made-up conversations. Kernel time: measured, the record is "
        "named on the page.",
        role="faint",
    )
    return canvas.svg()
