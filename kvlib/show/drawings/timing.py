"""What a timing protocol makes of the same machine: made-up run times with every common trouble.

The times are made up so that the truth is known. Way A takes 10 ms and way B 12 ms; the machine
starts cold, slows down as it goes, jitters, and now and then is away on other business.
"""

from __future__ import annotations

from functools import cache
from math import fsum, log2
from random import Random
from statistics import median

from kvlib.show.drawings.controls import Choice, Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas

TRUE_MS = {"A": 10.0, "B": 12.0}
WARM_UPS, REPEATS = [0, 1, 2, 3, 5], [1, 3, 5, 11, 21]
_SLOTS = 2 * (WARM_UPS[-1] + REPEATS[-1])
_COLD = (4.0, 2.2, 1.4, 1.1)
_DRIFT, _AWAY = 0.008, 7  # slower by so much each run; away in one run of so many
_LEFT, _RIGHT, _TOP, _LOW = MARGIN + 30, WIDTH - MARGIN, 66, 214
_FLOOR, _CEILING = 8.0, 80.0  # ms, on the logarithmic axis
_WIDEST = 3.5  # the largest ratio the ruler shows; no protocol here finds a larger one


@cache
def slowdowns() -> list[float]:
    """Returns what the machine does to each run in turn, as a factor; 1 would be undisturbed.

    Example:
        >>> [round(factor, 1) for factor in slowdowns()[:3]]
        [4.0, 2.2, 1.4]
    """
    chance = Random("a machine with company")
    factors = []
    for slot in range(_SLOTS):
        cold = _COLD[slot] if slot < len(_COLD) else 1.0
        jitter = 0.97 + 0.06 * chance.random()
        away = 2 + 2 * chance.random() if chance.randrange(_AWAY) == 0 else 1.0
        # The first runs are cold, which is trouble enough.
        factors.append(cold * jitter * (1 + _DRIFT * slot) * (1.0 if cold > 1 else away))
    return factors


def runs(warm_up: int, repeats: int, interleaved: bool) -> list[tuple[str, bool, float]]:
    """Returns every run in order: which way, whether it counts, and its time in ms.

    Example:
        >>> [way for way, counts, _ in runs(1, 1, interleaved=False) if counts]
        ['A', 'B']
        >>> [way for way, _, _ in runs(1, 1, interleaved=True)]
        ['A', 'B', 'A', 'B']
    """
    rounds = [counts for counts, n in ((False, warm_up), (True, repeats)) for _ in range(n)]
    order = (
        [(way, counts) for counts in rounds for way in TRUE_MS]
        if interleaved
        else [(way, counts) for way in TRUE_MS for counts in rounds]
    )
    return [
        (way, counts, TRUE_MS[way] * factor)
        for (way, counts), factor in zip(order, slowdowns(), strict=False)
    ]


def estimates(warm_up: int, repeats: int, statistic: str, interleaved: bool) -> tuple[float, float]:
    """Returns what the protocol believes: the time of A in ms, and the ratio B / A.

    In turns, each B is compared with the A just before it, and the statistic is taken of these
    ratios; one after the other, only the two statistics can be compared. The truth is 1.2:

    >>> round(estimates(0, 1, "mean", interleaved=False)[1], 1)
    0.7
    >>> round(estimates(3, 21, "median", interleaved=True)[1], 1)
    1.2
    """
    kept: dict[str, list[float]] = {"A": [], "B": []}
    for way, counts, time in runs(warm_up, repeats, interleaved):
        if counts:
            kept[way].append(time)
    middle = median if statistic == "median" else lambda values: fsum(values) / len(values)
    a, b = middle(kept["A"]), middle(kept["B"])
    pairs = zip(kept["A"], kept["B"], strict=True)
    return a, middle([second / first for first, second in pairs]) if interleaved else b / a


def _y(time: float) -> float:
    share = log2(min(time, _CEILING) / _FLOOR) / log2(_CEILING / _FLOOR)
    return _LOW - (_LOW - _TOP) * share


def _plot(canvas: Canvas, done: list[tuple[str, bool, float]]) -> None:
    for tick in (10, 20, 40, 80):
        canvas.line([(_LEFT, _y(tick)), (_RIGHT, _y(tick))], "rule")
        canvas.text(_LEFT - 6, _y(tick) + 4, f"{tick}", "end", size=12)
    step = (_RIGHT - _LEFT) / _SLOTS
    for slot, (way, counts, time) in enumerate(done):
        x, y = _LEFT + (slot + 0.5) * step, _y(time)
        if counts:
            canvas.rect(x - 3.5, y - 3.5, 7, 7, "ink" if way == "A" else "paper", "ink")
        else:
            for rise in (-3, 3):
                canvas.line([(x - 3, y - rise), (x + 3, y + rise)], "wasted", 1.5)


def _ruler(canvas: Canvas, ratio: float) -> None:
    """Draws the estimated ratio beside the true one; between the two lies the error."""
    truth = TRUE_MS["B"] / TRUE_MS["A"]

    def at(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * value / _WIDEST

    low, high = sorted((at(truth), at(ratio)))
    canvas.line([(_LEFT, 290), (_RIGHT, 290)], "rule")
    for tick in range(4):
        canvas.text(at(tick), 322, f"{tick}", "middle", size=12)
    canvas.rect(low, 280, high - low, 20, "wasted")
    canvas.line([(at(truth), 272), (at(truth), 308)], "ink", 2, dash="5 3")
    canvas.line([(at(ratio), 276), (at(ratio), 304)], "ink", 4)


@drawing(
    warm_up=Slider(WARM_UPS, 0, "warm-up runs thrown away"),
    repeats=Slider(REPEATS, 1, "runs kept of each"),
    statistic=Choice(["mean", "median"], "mean", "statistic"),
    interleaved=Toggle(False, "order", off="all of A, then all of B", on="in turns"),
)
def timing_protocol(warm_up: int, repeats: int, statistic: str, interleaved: bool) -> str:
    """Draws every run of two ways on a troubled machine, and the ratio a protocol finds."""
    a, ratio = estimates(warm_up, repeats, statistic, interleaved)
    truth = TRUE_MS["B"] / TRUE_MS["A"]
    error = 100 * (ratio / truth - 1)
    order = "in turns" if interleaved else "all of A, then all of B"
    canvas = Canvas(
        "timing_protocol",
        378,
        "Made-up run times, a known truth",
        f"Run times in the order they were taken, {order}: {warm_up} of each thrown away, {repeats}"
        f" kept. By the {statistic} B takes {ratio:.2f} times as long as A; the truth is "
        f"{truth:.2f}. Each step of a better protocol removes one kind of error.",
        under=f"ms a run, first run on the left; {order}",
    )
    _plot(canvas, runs(warm_up, repeats, interleaved))
    canvas.key(MARGIN, 242, "ink", "A, truly 10 ms")
    canvas.key(MARGIN + 130, 242, "paper", "B, truly 12 ms")
    canvas.text(MARGIN + 262, 242, "x thrown away")
    canvas.text(MARGIN, 268, f"B / A by the {statistic}: {ratio:.2f}", bold=True)
    canvas.text(_RIGHT, 268, f"- - truth {truth:.2f}", "end")
    _ruler(canvas, ratio)
    canvas.text(MARGIN, 346, f"Error of the ratio: {error:+.0f} %", bold=True)
    canvas.text(MARGIN, 366, f"A alone: {a:.1f} ms, {100 * (a / TRUE_MS['A'] - 1):+.0f} %")
    return canvas.svg()
