"""A prefix comes up layer by layer: the lane that copies and the lane that computes."""

from __future__ import annotations

from collections.abc import Sequence

from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

Span = tuple[float, float]
_BAR = 20


def in_turns(copies: Sequence[float], computes: Sequence[float], busy: float = 0) -> list[Span]:
    """Returns when each layer computes if the whole prefix is waited for.

    Args:
        copies: time of each layer's copy; they run one after the other from 0 on.
        computes: time of each layer's computation.
        busy: until when the model has other work.

    Example:
        >>> in_turns([2, 2], [3, 3])
        [(4, 7), (7, 10)]
    """
    spans, now = [], max(sum(copies), busy)
    for length in computes:
        spans.append((now, now + length))
        now += length
    return spans


def layer_wise(
    copies: Sequence[float], computes: Sequence[float], distance: int, busy: float = 0
) -> tuple[list[Span], list[Span]]:
    """Returns when each layer is copied and when it computes, if each waits for its own copy.

    The copy of layer `i` may begin once layer `i - distance` computes: so many layers have buffers
    that wait to be used.

    Args:
        copies: time of each layer's copy.
        computes: time of each layer's computation.
        distance: layers copied ahead of the one that computes, at least 1.
        busy: until when the model has other work; copies may run before.

    Example:
        >>> layer_wise([2, 2], [3, 3], distance=1)
        ([(0, 2), (2, 4)], [(2, 5), (5, 8)])
    """
    moved: list[Span] = []
    computed: list[Span] = []
    for i, (copy, compute) in enumerate(zip(copies, computes, strict=True)):
        free = computed[i - distance][0] if i >= distance else 0
        begin = max(moved[-1][1] if moved else 0, free)
        moved.append((begin, begin + copy))
        begin = max(computed[-1][1] if computed else busy, moved[-1][1])
        computed.append((begin, begin + compute))
    return moved, computed


def most_ahead(moved: Sequence[Span], computed: Sequence[Span]) -> int:
    """Returns how many layers were ever copied, or being copied, before they computed.

    Example:
        >>> most_ahead(*layer_wise([1, 1, 1], [1, 1, 1], distance=3, busy=2))
        2
    """
    return max(
        sum(used[0] > begun for used in computed[: i + 1]) for i, (begun, _) in enumerate(moved)
    )


def _lanes(
    canvas: Canvas, y: float, title: str, moved: list[Span], computed: list[Span], scale: float
) -> None:
    end = computed[-1][1]
    canvas.text(MARGIN, y, title, bold=True)
    canvas.text(WIDTH - MARGIN, y, f"done at {end:g}", "end", bold=True)
    for row, (role, spans) in enumerate((("reserved", moved), ("prefill", computed))):
        top = y + 10 + row * (_BAR + 6)
        canvas.rect(MARGIN, top, ROOM, _BAR, "paper", "rule")
        for first, last in spans:
            width = (last - first) * scale
            canvas.rect(MARGIN + first * scale, top, width, _BAR, role, "ink")
    x = MARGIN + end * scale
    canvas.line([(x, y + 6), (x, y + 14 + 2 * _BAR + 6)], "ink", 1.5, dash="3 3")


@drawing(
    layers=Choice([4, 8, 16], 8, "layers"),
    copy=Slider([0.25, 0.5, 1, 2, 4], 1, "time to copy a layer (to compute one: 1)"),
    distance=Slider([1, 2, 4, 16], 16, "prefetch distance (layers)"),
    busy=Slider([0, 2, 4, 8], 0, "the model is busy until"),
)
def copy_lanes(layers: int, copy: float, distance: int, busy: float) -> str:
    """Draws both lanes when the whole prefix is waited for, and when each layer waits for its own.

    Args:
        layers: of the model.
        copy: time of a layer's copy; a layer computes in 1.
        distance: layers that may be copied ahead.
        busy: until when the model computes for somebody else.
    """
    copies, computes = [copy] * layers, [1] * layers
    whole = in_turns(copies, computes, busy)
    at_once = [(i * copy, (i + 1) * copy) for i in range(layers)]
    moved, computed = layer_wise(copies, computes, distance, busy)
    end, limit = computed[-1][1], max(layers * copy, busy + layers)
    saved = whole[-1][1] - end
    verdict = (
        f"Layer by layer saves {saved:g} of {whole[-1][1]:g}. "
        f"The longer lane alone takes until {limit:g}."
    )
    canvas = Canvas(
        "copy_lanes",
        288,
        "A copy lane beside a compute lane",
        f"Two pairs of strips over time, {layers} layers. Waiting for the whole prefix the last "
        f"layer is done at {whole[-1][1]:g}, layer by layer at {end:g}. {verdict}",
        under=f"{layers} layers; copying takes {layers * copy:g} in all, computing {layers}",
    )
    canvas.key(MARGIN, 76, "reserved", "a layer is copied")
    canvas.key(MARGIN + 150, 76, "prefill", "a layer computes")
    scale = ROOM / max(whole[-1][1], end)
    _lanes(canvas, 108, "the whole prefix first", at_once, whole, scale)
    used = most_ahead(moved, computed)
    title = f"layer by layer: room for {distance} ahead, {used} used"
    _lanes(canvas, 186, title, moved, computed, scale)
    canvas.paragraph(262, verdict, bold=True)
    return canvas.svg()
