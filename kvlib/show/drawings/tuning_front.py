"""Every setting of a grid on one trace, the front of those that nobody beats, and the reader's.

Figures are means over three stretches of each trace, counted by `measure/trace_tuning.py`, which
leaves them in `kvlib/data/tuning.json`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from math import log2
from typing import Any, NamedTuple

from kvlib.ranking import choose, pareto_front
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, Canvas
from kvlib.tuning import Setting, grid

TRACES, CLOCKS = ("azure-conv", "azure-code"), ("take turns", "overlap")
_LEFT, _RIGHT, _TOP, _HIGH = 58, 424, 84, 190
_FASTEST, _SLOWEST = 32, 640


class Point(NamedTuple):
    """What a setting came to: requests that kept the target in %, and time for a token in ms."""

    good: float
    tpot_ms: float


@cache
def _kept() -> dict[str, Any]:
    text = (files("kvlib") / "data" / "tuning.json").read_text(encoding="utf-8")
    return json.loads(text)


VALUES: dict[str, list[Any]] = _kept()["values"]


@cache
def points(trace: str, clock: str) -> dict[Setting, Point]:
    """Returns every setting of the grid with its figures on a trace, under a clock."""
    figures = _kept()[f"{clock}, {trace}"]
    pairs = zip(figures["good_percent"], figures["tpot_p99_ms"], strict=True)
    return dict(zip(grid(Setting(), **VALUES), (Point(*pair) for pair in pairs), strict=True))


def _place(point: Point) -> tuple[float, float]:
    across = _LEFT + (_RIGHT - _LEFT) * point.good / 100
    down = log2(point.tpot_ms / _FASTEST) / log2(_SLOWEST / _FASTEST)
    return across, _TOP + _HIGH * (1 - down)


def _axes(canvas: Canvas) -> None:
    bottom = _TOP + _HIGH
    for ms in (32, 64, 128, 256, 512):
        _, y = _place(Point(0, ms))
        canvas.line([(_LEFT, y), (_RIGHT, y)], "rule")
        canvas.text(_LEFT - 6, y + 4, str(ms), "end", role="faint")
    for percent in (0, 25, 50, 75, 100):
        x, _ = _place(Point(percent, _FASTEST))
        canvas.line([(x, _TOP), (x, bottom)], "rule")
        anchor = "end" if percent == 100 else "middle"
        canvas.text(x, bottom + 18, str(percent), anchor, role="faint")
    canvas.text(MARGIN, _TOP - 12, "ms a token, 99th percentile (down: faster)", role="faint")
    canvas.text(_RIGHT, bottom + 36, "requests that keep the target, %", "end", role="faint")


def _mark(canvas: Canvas, point: Point, size: float, role: str, frame: str = "") -> None:
    x, y = _place(point)
    canvas.rect(x - size / 2, y - size / 2, size, size, role, frame)


def _settings(
    canvas: Canvas, there: dict[Setting, Point], front: list[Setting], here: Point
) -> None:
    for point in there.values():
        _mark(canvas, point, 4, "faint")
    canvas.line([_place(there[each]) for each in front], "used", 2)
    for each in front:
        _mark(canvas, there[each], 7, "used", "paper")
    _mark(canvas, there[Setting()], 10, "paper", "ink")
    _mark(canvas, here, 10, "wasted", "ink")


def _verdict(mine: Setting, there: dict[Setting, Point], front: list[Setting]) -> str:
    here = there[mine]
    if here in [there[each] for each in front]:
        return "On the front: nobody is better at one and no worse at the other."
    good = max(each.good for each in there.values() if each.tpot_ms <= here.tpot_ms)
    if good > here.good:
        return f"Not on the front: others, no slower, keep {good:.0f} %."
    return "Not on the front: others keep as many, and are faster."


@drawing(
    trace=Choice(TRACES, "azure-conv", "requests of"),
    clock=Choice(CLOCKS, "take turns", "bytes and arithmetic"),
    block_size=Slider(VALUES["block_size"], 16, "block size, tokens"),
    max_tokens=Slider(VALUES["max_tokens"], 2048, "tokens a step (chunk)", "{:,}"),
    max_running=Slider(VALUES["max_running"], 256, "requests at a time"),
    watermark=Slider(VALUES["watermark"], 0.0, "watermark (share of memory)"),
)
def tuning_front(
    trace: str, clock: str, block_size: int, max_tokens: int, max_running: int, watermark: float
) -> str:
    """Draws all settings as points, the front among them, and where the reader's lies."""
    mine = Setting(block_size, max_tokens, max_running, watermark)
    there = points(trace, clock)
    here, default = there[mine], there[Setting()]
    front = pareto_front(there)
    (other,) = set(TRACES) - {trace}
    elsewhere = points(other, clock)
    heading = f"{here.good:.0f} % keep the target, {here.tpot_ms:.0f} ms a token"
    verdict = _verdict(mine, there, front)
    blind = f"On {other} it is {elsewhere[mine].good:.0f} %, with the default"
    blind += f" {elsewhere[Setting()].good:.0f} %."
    best = choose({setting: [point.good] for setting, point in there.items()}, Setting())
    canvas = Canvas(
        "tuning_front",
        412,
        heading,
        f"{len(there)} settings on {trace}, bytes and arithmetic {clock}. Yours: {heading}. "
        f"The default: {default.good:.0f} %, {default.tpot_ms:.0f} ms. {verdict} {blind} "
        f"The most that any keeps is {there[best].good:.0f} %.",
        under=f"{trace}: block {block_size}, chunk {max_tokens}, at once {max_running}, "
        f"mark {100 * watermark:g} %",
    )
    _axes(canvas)
    _settings(canvas, there, front, here)
    y = _TOP + _HIGH + 60
    for x, role, words in (
        (0, "wasted", "yours"),
        (74, "paper", "default"),
        (160, "used", "front"),
    ):
        canvas.key(MARGIN + x, y, role, words)
    canvas.key(MARGIN + 230, y, "faint", "all others")
    canvas.paragraph(canvas.paragraph(y + 26, verdict, bold=True) + 2, blind)
    return canvas.svg()
