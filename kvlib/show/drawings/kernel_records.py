"""The kernel lab's records: what each way to attend takes and what it moves, beside one of them.

`measure/kernel_variants.py` leaves the figures in `kvlib/data/kernel_variants.json`: times are
medians of ratios to the library's own kernel, bytes are counted.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from math import log2

from kvlib.show.drawings.controls import Choice
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

MODELS = ("SmolLM2-135M", "Llama-3-8B")
POINTS = ("1 x 2,048", "4 x 1,024", "8 ragged, 64 to 2,048", "1 x 8,192")
WHAT = {"takes_times": "time", "bytes_moved": "bytes moved"}
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
_LEFT, _TOP, _STEP = MARGIN + 100, 92, 26
_BAR = ROOM - 100 - 52


@cache
def rows() -> dict[str, list[dict]]:
    """Returns the rows of each device's record, one for each model and point."""
    text = (files("kvlib") / "data" / "kernel_variants.json").read_text(encoding="utf-8")
    return json.loads(text)


def figures(model: str, point: str, what: str, device: str = "cpu") -> dict[str, float]:
    """Returns for each way how many times the yardstick it takes or moves, the least first.

    Example:
        >>> figures("Llama-3-8B", "4 x 1,024", "takes_times")["kernel"]
        1.0
    """
    row = _row(model, point, device)
    whole = row["kv_bytes"] if what == "bytes_moved" else 1
    found = {name: value / whole for name, value in row[what].items()}
    return dict(sorted(found.items(), key=lambda pair: (pair[1], pair[0])))


def _row(model: str, point: str, device: str) -> dict:
    return next(r for r in rows()[device] if (r["model"], r["point"]) == (model, point))


def _sentence(model: str, point: str, what: str, device: str) -> str:
    found = figures(model, point, what, device)
    least, *_, most = found.items()
    if what == "bytes_moved":
        moved = _row(model, point, device)["kv_bytes"] / 1e6
        return f"Keys and values: {moved:.1f} MB. Most is moved by {most[0]}: {most[1]:.1f} times."
    return f"Fastest: {least[0]}, {least[1]:.2f}. Slowest: {most[0]}, {most[1]:.1f}."


def _empty(canvas: Canvas) -> str:
    canvas.text(WIDTH / 2, _TOP + 3 * _STEP, "no record yet", "middle", size=15, role="faint")
    words = "Nobody has run measure/kernel_variants.py on a card for this book."
    canvas.paragraph(_TOP + 9 * _STEP, words)
    return canvas.svg()


@drawing(
    model=Choice(MODELS, MODELS[0], "heads of"),
    point=Choice(POINTS, POINTS[1], "sequences x tokens"),
    what=Choice(list(WHAT), "takes_times", "show", WHAT),
    device=Choice(list(DEVICES), "cpu", "measured on", DEVICES),
)
def kernel_records(model: str, point: str, what: str, device: str) -> str:
    """Draws one point of the record as bars on a scale that doubles."""
    known = device in rows()
    said = _sentence(model, point, what, device) if known else "No record yet."
    canvas = Canvas(
        "kernel_records",
        _TOP + 9 * _STEP + 48,
        f"Ways to attend: {WHAT[what]}, the kernel's = 1",
        f"A bar for each way to attend over blocks, {model}'s heads, {point} tokens, on a "
        f"{DEVICES[device]}. {said}",
        under=f"{model}'s heads, {point} tokens",
    )
    if not known:
        return _empty(canvas)
    found = figures(model, point, what, device)
    # From half the yardstick up; each step of the scale doubles.
    reach = max(4, *(log2(value) + 1.5 for value in found.values()))
    low = _TOP + len(found) * _STEP - 8
    for power in range(0, int(reach), 1 if reach < 6 else 2):
        x = _LEFT + _BAR * (power + 1) / reach
        canvas.line([(x, _TOP - 8), (x, low)], "ink" if power == 0 else "rule", 1, dash="2 3")
        canvas.text(x, _TOP - 13, f"{2**power}", "middle", size=10, role="faint")
    for at, (name, value) in enumerate(found.items()):
        y = _TOP + at * _STEP
        canvas.text(_LEFT - 8, y + 13, name, "end", size=12, bold=name == "kernel")
        width = max(2.0, _BAR * (log2(value) + 1) / reach)
        canvas.rect(_LEFT, y, width, 17, "decode" if what == "takes_times" else "cached")
        canvas.text(_LEFT + width + 5, y + 13, f"{value:.3g}", size=12)
    canvas.paragraph(_TOP + 9 * _STEP + 4, said, bold=True)
    return canvas.svg()
