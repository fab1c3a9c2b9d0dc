"""One sequence on physical pages: how many tokens a page holds, and what its last page wastes."""

from __future__ import annotations

from functools import cache
from math import fsum
from typing import NamedTuple

from kvlib.catalog import model as published
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.workloads import sample

BUDGET = 24 * 2**30
REQUESTS = 400
PAGES = {64: "64 KiB", 256: "256 KiB", 2048: "2 MiB"}
MODELS = ("OPT-13B", "Llama-2-7B", "Llama-3-8B", "Llama-3-70B", "Qwen2.5-7B")
LENGTHS = ("azure-conv", "azure-code", "arxiv", "mooncake-conv")
_LEFT = 112


class Held(NamedTuple):
    """What a sample of requests holds at its final lengths.

    Attributes:
        empty: share of what is held that no token fills.
        fit: requests of the mean size that fit into the budget.
    """

    empty: float
    fit: int


@cache
def finals(lengths: str) -> tuple[int, ...]:
    """Returns the final lengths of a sample of a trace, the shortest first."""
    return tuple(sorted(r.prompt_tokens + r.output_tokens for r in sample(lengths, REQUESTS, 0)))


def row_bytes(model: str) -> int:
    """Returns the bytes of one token's keys in one layer, at 16 bits; its values take as many.

    >>> row_bytes("Llama-3-8B")
    2048
    """
    shape = published(model).kv
    return 2 * shape.num_kv_heads * shape.head_dim


def num_pages(num_tokens: int, row: int, page: int) -> int:
    """Returns the pages under one layer's keys: a token may lie across two of them.

    >>> num_pages(1024, row=6144, page=2**21), num_pages(1, row=2048, page=2**21)
    (3, 1)
    """
    return -(-num_tokens * row // page)


@cache
def held(model: str, lengths: str, unit: int) -> Held:
    """Returns what the sample holds in units of so many bytes of one layer's keys."""
    row, layers = row_bytes(model), published(model).kv.num_layers
    tokens = fsum(finals(lengths))
    total = fsum(unit * num_pages(n, row, unit) for n in finals(lengths))
    return Held(1 - row * tokens / total, int(BUDGET / (2 * layers * total / REQUESTS)))


def _short(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens == int(tokens) else f"{tokens:,.1f}"


def _strip(canvas: Canvas, y: float, num_tokens: int, row: int, page: int) -> None:
    count = num_pages(num_tokens, row, page)
    filled = ROOM * num_tokens * row / (count * page)
    canvas.rect(MARGIN, y, filled, 26, "used", "faint")
    canvas.rect(MARGIN + filled, y, ROOM - filled, 26, "wasted", "faint")
    if count <= 64:  # more would be a grey smear
        for i in range(1, count):
            x = MARGIN + ROOM * i / count
            canvas.line([(x, y), (x, y + 26)], "paper", 2 if count <= 24 else 1)


def _bar(canvas: Canvas, y: float, words: str, now: Held) -> None:
    room = WIDTH - MARGIN - _LEFT - 100
    canvas.text(MARGIN, y + 13, words)
    canvas.rect(_LEFT, y, room * (1 - now.empty), 16, "used", "faint")
    canvas.rect(_LEFT + room * (1 - now.empty), y, room * now.empty, 16, "wasted", "faint")
    canvas.text(WIDTH - MARGIN, y + 13, f"{100 * now.empty:.1f} %, {now.fit:,} fit", "end")


@drawing(
    page=Slider(list(PAGES), 2048, "page", PAGES),
    model=Choice(MODELS, "Llama-3-8B", "model"),
    lengths=Choice(LENGTHS, "azure-conv", "lengths"),
)
def page_granularity(page: int, model: str, lengths: str) -> str:
    """Draws the pages under one layer's keys of the median request, and what all requests waste."""
    row, size, layers = row_bytes(model), page * 1024, published(model).kv.num_layers
    middle = finals(lengths)[REQUESTS // 2]
    count = num_pages(middle, row, size)
    rows = {PAGES[page]: held(model, lengths, size)}
    rows |= {f"blocks of {n}": held(model, lengths, n * row) for n in (16, 256)}
    group = 2 * layers * page / 1024
    fill = middle * row / (count * size)
    words = "; ".join(f"{name}: {100 * h.empty:.1f} % empty, {h.fit}" for name, h in rows.items())
    canvas = Canvas(
        "page_granularity",
        300,
        f"{model} on pages of {PAGES[page]}",
        f"A page holds {_short(size / row)} tokens of one layer's keys. The median request, "
        f"{middle:,} tokens, lies on {count:,} of them, {100 * fill:.0f} % full. Of all that the "
        f"sample holds, and requests that fit into 24 GiB: {words}.",
        f"{model}: {_short(size / row)} tokens a page of {PAGES[page]}",
        f"2 x {layers} pages at a time, {group:,.0f} MiB; {lengths} sample",
    )
    canvas.text(MARGIN, 78, f"One layer's keys of the median request, {middle:,} tokens")
    _strip(canvas, 88, middle, row, size)
    what = f"{count:,} page{'s' * (count > 1)}"
    canvas.key(MARGIN, 136, "used", "a token in it")
    canvas.key(MARGIN + 120, 136, "wasted", "empty")
    canvas.text(WIDTH - MARGIN, 136, what, "end", bold=True)
    canvas.text(MARGIN, 172, "Empty, of all that is held; requests in 24 GiB", bold=True)
    for i, (name, now) in enumerate(rows.items()):
        _bar(canvas, 186 + 28 * i, name, now)
    canvas.text(MARGIN, 286, "At final lengths, 16 bits an element.", role="faint")
    return canvas.svg()
