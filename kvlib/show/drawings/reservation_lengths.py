"""One reservation against the lengths of many requests: who fits, and what stays empty."""

from __future__ import annotations

from functools import cache
from math import fsum, log2

from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.workloads import sample

BLOCK_SIZE = 16
RESERVED = (256, 500, 750, 1024, 2048, 3072, 4096, 8192, 16_384)
UNIFORM = "uniform, 10 to 500"
# Bars are half a power of two wide, from 8 tokens to 16,384.
_BARS, _LOWEST = 22, 8
_LOW, _HIGH, _STRIP = 178, 110, 226


@cache
def lengths(name: str) -> tuple[int, ...]:
    """Returns prompt and output together, in tokens: of 2,000 sampled requests, or made up.

    >>> sum(lengths(UNIFORM)) / len(lengths(UNIFORM))
    255.0
    """
    if name == UNIFORM:
        return tuple(range(10, 501))
    return tuple(r.prompt_tokens + r.output_tokens for r in sample(name, 2000, seed=0))


def saved(name: str, reserved: int) -> tuple[float, float]:
    """Returns the share of requests that fit, and what blocks of 16 save of their reservations.

    >>> [round(100 * saved(UNIFORM, n)[1], 1) for n in (500, 750)]
    [47.5, 65.0]
    """
    fits = [n for n in lengths(name) if n <= reserved]
    blocks = fsum(-(-n // BLOCK_SIZE) * BLOCK_SIZE for n in fits)
    empty = 1 - blocks / (reserved * len(fits)) if fits else 0.0
    return len(fits) / len(lengths(name)), empty


def _x(tokens: float) -> float:
    return MARGIN + ROOM * 2 * log2(tokens / _LOWEST) / _BARS


def _histogram(canvas: Canvas, name: str, reserved: int) -> None:
    bars = [[0, 0] for _ in range(_BARS)]
    for n in lengths(name):
        bar = min(_BARS - 1, int(2 * log2(n / _LOWEST)))
        bars[bar][n > reserved] += 1
    tallest = max(sum(bar) for bar in bars)
    for bar, (fit, longer) in enumerate(bars):
        x, top = MARGIN + ROOM * bar / _BARS, _LOW
        for role, count in (("used", fit), ("paper", longer)):
            top -= _HIGH * count / tallest
            if count:
                high = _HIGH * count / tallest
                canvas.rect(x + 1, top, ROOM / _BARS - 2, high, role, "ink")
    canvas.line([(MARGIN, _LOW), (MARGIN + ROOM, _LOW)], "ink")
    for tick in (16, 64, 256, 1024, 4096):
        canvas.text(_x(tick), _LOW + 16, f"{tick:,}", "middle", size=12)
    canvas.line([(_x(reserved), 56), (_x(reserved), _LOW)], "wasted", 2.5, dash="6 3")


@drawing(
    requests=Choice([UNIFORM, "azure-conv", "azure-code"], "azure-conv", "lengths"),
    reserved=Slider(RESERVED, 4096, "reserved for each (tokens)", "{:,}"),
)
def reservation_histogram(requests: str, reserved: int) -> str:
    """Draws the lengths of many requests, one reservation for all, and what it leaves empty."""
    fit, empty = saved(requests, reserved)
    blocks = f"{100 * empty:.1f} %"
    users = f"{1 / (1 - empty):.2f} times as many in the same memory"
    users += "." if fit == 1 else ", of those that fit."
    verdict = f"{blocks} empty. Blocks of 16: {users}" if fit else "No request fits."
    canvas = Canvas(
        "reservation_histogram",
        358,
        "Request lengths, one reservation for all",
        f"A histogram of {len(lengths(requests)):,} lengths ({requests}). {100 * fit:.1f} % fit "
        f"into {reserved:,} tokens. {verdict}",
        under=f"{requests}: prompt and output, tokens",
    )
    _histogram(canvas, requests, reserved)
    filled = ROOM * (1 - empty) if fit else 0.0
    canvas.rect(MARGIN, _STRIP - 18, filled, 24, "used", "ink")
    canvas.rect(MARGIN + filled, _STRIP - 18, ROOM - filled, 24, "wasted", "ink")
    held, num = reserved * (1 - empty) * (fit > 0), len(lengths(requests))
    rows = (
        ("used", "filled, on average", held, reserved),
        ("wasted", "empty: what blocks of 16 save", reserved - held, reserved),
        ("paper", "requests that do not fit", num * (1 - fit), num),
    )
    figures = ((*row, f"{part:,.0f}", f"{100 * part / whole:.1f} %") for *row, part, whole in rows)
    canvas.table(256, WIDTH - 84, figures)
    canvas.paragraph(326, verdict, bold=True)
    return canvas.svg()
