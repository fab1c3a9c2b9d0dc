"""A prefix read from a tier or computed again: two timelines, and the length where they meet."""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from kvlib.catalog import gpu, model
from kvlib.prefetch import LayerTimes, layer_times
from kvlib.prefill_time import Prefill
from kvlib.read_or_compute import faster_read
from kvlib.show.drawings.controls import Choice, Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

MODEL = "Llama-3-8B"
PREFIXES = tuple(2**i for i in range(6, 18))
_BAR, _AXIS = 16, 40


class TierLink:
    """What `faster_read` asks of a tier; one without a capacity."""

    def __init__(self, gb_s: float, latency_s: float) -> None:
        self.gb_s, self.latency_s = gb_s, latency_s

    def read_s(self, num_bytes: int) -> float:
        """Returns the seconds of one read."""
        return self.latency_s + num_bytes / (self.gb_s * 1e9)


class Both(NamedTuple):
    """Layers as they are read and computed, seconds of both ways, lengths that are read faster."""

    layers: list[LayerTimes]
    read_s: float
    compute_s: float
    faster: list[range]


def both(card: str, gb_s: float, latency_ms: float, prefix: int, rest: int, by_layer: bool) -> Both:
    """Returns the times of both ways.

    Example:
        >>> found = both("H100 SXM5", 25, 0.1, 4096, 1, True)
        >>> round(1000 * found.read_s), round(1000 * found.compute_s), found.faster
        (22, 71, [range(303, 131073)])
    """
    prefill, link = Prefill(gpu(card), model(MODEL)), TierLink(gb_s, latency_ms / 1000)
    parts = prefill.num_layers if by_layer else 1
    load = (link.read_s(prefix * prefill.token_bytes) - link.latency_s) / parts
    each = prefill(rest, prefix) / parts
    layers = layer_times(parts, load, each, distance=parts, latency_s=link.latency_s)
    found = faster_read(link, prefill.token_bytes, prefill, suffix_tokens=rest, num_layers=parts)
    return Both(layers, layers[-1].compute_end, prefill(prefix + rest), found)


def _lanes(canvas: Canvas, y: float, times: Both) -> None:
    scale = ROOM / max(times.read_s, times.compute_s)
    canvas.text(MARGIN, y - 6, "read: the link, and below it the card")
    for row, role in enumerate(("cached", "prefill")):
        for at in times.layers:
            start, end = at[3 * row], at[3 * row + 1]
            x, width = MARGIN + start * scale, (end - start) * scale
            # The outline that tells layers apart would cover a thin one.
            frame = "paper" if width > 6 else ""
            canvas.rect(x, y + row * (_BAR + 2), max(width, 1), _BAR, role, frame)
    y += 2 * _BAR + 28
    canvas.text(MARGIN, y - 6, "computed again: the card")
    canvas.rect(MARGIN, y, times.compute_s * scale, _BAR, "prefill")


def _strip(canvas: Canvas, y: float, prefix: int, faster: list[range]) -> None:
    def place(tokens: float) -> float:
        low, high = log2(PREFIXES[0]), log2(PREFIXES[-1])
        return MARGIN + ROOM * min(1.0, max(0.0, (log2(tokens) - low) / (high - low)))

    canvas.rect(MARGIN, y, ROOM, _BAR, "prefill", "faint")
    for each in faster:
        left, right = place(each.start), place(each.stop)
        canvas.rect(left, y, right - left, _BAR, "cached", "faint")
    here = place(prefix)
    canvas.line([(here, y - 6), (here, y + _BAR + 6)], "ink", 3)
    anchor = "start" if here < WIDTH / 3 else "end" if here > WIDTH * 2 / 3 else "middle"
    canvas.text(here, y - 10, f"{prefix:,} tokens", anchor, bold=True)
    canvas.text(MARGIN, y + _BAR + 20, str(PREFIXES[0]), role="faint")
    canvas.text(MARGIN + ROOM, y + _BAR + 20, f"{PREFIXES[-1]:,}", "end", role="faint")
    canvas.key(MARGIN + 36, y + _BAR + 20, "prefill", "computing is faster")
    canvas.key(MARGIN + 204, y + _BAR + 20, "cached", "reading is faster")


@drawing(
    card=Choice(["H100 SXM5", "A100 80GB SXM", "A10", "L4"], "H100 SXM5", "card"),
    gb_s=Slider([0.5, 1, 2, 4, 6, 8, 12, 25, 50], 25, "link, GB/s"),
    latency=Slider([0.01, 0.1, 1, 10, 100], 0.1, "latency of the link, ms"),
    prefix=Slider(PREFIXES, 4096, "prefix, tokens", "{:,}"),
    rest=Slider([1, 64, 512, 4096], 1, "rest of the prompt, tokens", "{:,}"),
    by_layer=Toggle(True, "read", "everything first", "layer by layer"),
)
def tier_break_even(
    card: str, gb_s: float, latency: float, prefix: int, rest: int, by_layer: bool
) -> str:
    """Draws both timelines, and below them from which prefix on reading is the faster way."""
    times = both(card, gb_s, latency, prefix, rest, by_layer)
    read, compute = 1000 * times.read_s, 1000 * times.compute_s
    better = "Read it" if read < compute else "Compute it"
    digits = 1 if max(read, compute) < 1000 else 0
    heading = f"{better}: {read:,.{digits}f} ms to read, {compute:,.{digits}f} to compute"
    turn = "No prefix of 131,072 tokens or fewer is read faster than computed."
    if times.faster:
        parts = [f"from {each.start:,} to {each.stop - 1:,} tokens" for each in times.faster]
        if times.faster[-1].stop > PREFIXES[-1]:
            parts[-1] = f"from {times.faster[-1].start:,} on"
        turn = f"Break-even: reading is faster {', and '.join(parts)}."
    loading = times.layers[-1].load_end - times.layers[0].load_start
    busy = sum(at.compute_end - at.compute_start for at in times.layers)
    waits = f"Reading takes the link {1000 * loading:,.1f} ms and the card {1000 * busy:,.1f} ms; "
    waits += f"the card waits {1000 * (times.read_s - busy):,.1f} ms."
    canvas = Canvas(
        "tier_break_even",
        344,
        heading,
        f"{heading}. {waits} {turn}",
        under=f"{MODEL} on one {card}, link {gb_s:g} GB/s, {latency:g} ms",
    )
    _lanes(canvas, 82, times)
    _strip(canvas, 194, prefix, times.faster)
    canvas.paragraph(canvas.paragraph(256, turn, bold=True) + 4, waits)
    return canvas.svg()
