"""Which tokens of a text with a number in it one real head keeps, and whether it has the number.

The weights are those of the head of SmolLM2-135M that looks most at the number when it is asked
for, with nothing given up; `tools/needle_rows.py` recorded them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from itertools import groupby
from math import fsum

from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, Canvas
from kvlib.token_budget import heavy_hitters, sinks_and_window, snap

RULES = {
    "sinks": "the first four and the newest",
    "H2O": "heavy hitters: half newest, half most attended",
    "SnapKV": "SnapKV: chosen by the last four tokens of the prompt",
}
SINKS, OBSERVE, KERNEL = 4, 4, 3
_CELL, _ROW = 11.6, 5
_BARS_LOW, _BARS_HIGH, _GRID = 146, 78, 200


@cache
def recorded() -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...], range, int]:
    """Returns the tokens, for each its weights, where the number is, and how long the text is.

    >>> words, weights, number, num_context = recorded()
    >>> [words[at] for at in number], words[num_context - 1], len(weights) == len(words)
    (['7', '3', '9', '1'], '.', True)
    """
    text = (files("kvlib") / "data" / "needle_rows.json").read_text(encoding="utf-8")
    record = json.loads(text)
    rows = (tuple(weight / sum(row) for weight in row) for row in record["weights"])
    return tuple(record["tokens"]), tuple(rows), range(*record["number"]), record["context_tokens"]


@cache
def held(rule: str, budget: int, asked: str) -> tuple[tuple[int, ...], ...]:
    """Returns for each token which tokens are held once it has been read.

    SnapKV holds all of a prompt until it has been read; the prompt is the text, or the text and the
    question. The other two read token by token.

    >>> held("sinks", 8, "later")[20], len(held("SnapKV", 8, "later")[-1])
    ((0, 1, 2, 3, 17, 18, 19, 20), 16)
    """
    words, rows, _, num_context = recorded()
    if rule == "sinks":
        steps = [sinks_and_window(n + 1, SINKS, budget - SINKS) for n in range(len(words))]
    elif rule == "H2O":
        steps = heavy_hitters(rows, budget, recent=budget // 2)
    else:
        prompt = num_context if asked == "later" else len(words)
        full = [row + (0.0,) * (prompt - len(row)) for row in rows[:prompt]]
        kept = snap(full, budget, OBSERVE, kernel=KERNEL)
        whole = [list(range(n + 1)) for n in range(prompt - 1)]
        steps = whole + [[*kept, *range(prompt, n)] for n in range(prompt, len(words) + 1)]
    return tuple(map(tuple, steps))


def lost_share(rule: str, budget: int, asked: str) -> float:
    """Returns the share of the last token's attention on what is not held once it was read."""
    kept = held(rule, budget, asked)[-1]
    return fsum(w for token, w in enumerate(recorded()[1][-1]) if token not in kept)


def _verdict(rule: str, budget: int, asked: str) -> str:
    number, kept = recorded()[2], held(rule, budget, asked)[-1]
    digits = sum(token in kept for token in number)
    lost = lost_share(rule, budget, asked)
    return (
        f"{digits} of 4 digits are held. {100 * lost:.0f} % of the last token's attention is on "
        f"tokens given up."
    )


@drawing(
    rule=Choice(list(RULES), "SnapKV", "rule", RULES),
    budget=Slider([8, 12, 16, 20, 24], 16, "tokens kept"),
    asked=Choice(
        ["with it", "later"],
        "with it",
        "the question comes",
        {"with it": "in the prompt", "later": "after the prompt"},
    ),
)
def eviction_budget(rule: str, budget: int, asked: str) -> str:
    """Draws the last token's attention over kept and lost tokens, above all the steps before."""
    words, weights, number, num_context = recorded()
    steps, verdict = held(rule, budget, asked), _verdict(rule, budget, asked)
    last, kept = len(words) - 1, steps[-1]
    when = {"with it": "in one prompt", "later": "text first, question later"}[asked]
    canvas = Canvas(
        "eviction_budget",
        _GRID + len(words) * _ROW + 84,
        f"Which {budget} tokens are kept, and whether the number is among them",
        f"Bars: whom the last token of the question looks at, if nothing is given up. Below, one "
        f"row a token read: what is held by then. {RULES[rule]}, {when}. Held at the end: "
        f"{', '.join(map(str, kept))}. {verdict}",
        "Asked for the number: who is still there?",
        f"{rule}, {budget} kept, {when}",
    )
    for level in (0, 0.25):
        y = _BARS_LOW - level / 0.3 * _BARS_HIGH
        canvas.line([(MARGIN, y), (MARGIN + len(words) * _CELL, y)], "rule")
        if level:
            right = MARGIN + len(words) * _CELL
            canvas.text(right, y - 4, "25 % of its attention", "end", role="faint")
    for token, weight in enumerate(weights[last]):
        high = max(1.0, weight / 0.3 * _BARS_HIGH)
        canvas.rect(_x(token), _BARS_LOW - high, _CELL - 2, high, _role(token, last, kept))
    _places(canvas, number, num_context)
    for step in range(len(words)):
        _row(canvas, step, steps[step])
    y = _GRID + len(words) * _ROW + 22
    for x, role, name in (
        (0, "cached", "held"),
        (88, "wasted", "given up"),
        (200, "decode", "new"),
    ):
        canvas.key(MARGIN + x, y, role, name)
    canvas.paragraph(y + 24, verdict, bold=True)
    return canvas.svg()


def _places(canvas: Canvas, number: range, num_context: int) -> None:
    """Says under the bars where the number and the question are."""
    end = len(recorded()[0])
    for start, stop, name in ((number.start, number.stop, "7391"), (num_context, end, "question")):
        left, right = _x(start), _x(stop) - 2
        canvas.line([(left, _BARS_LOW + 5), (right, _BARS_LOW + 5)], "ink", 2)
        canvas.text((left + right) / 2, _BARS_LOW + 20, name, "middle", size=12)
    canvas.text(MARGIN, _GRID - 6, "token by token, from the first one down", size=12, role="faint")


def _x(token: int) -> float:
    return MARGIN + token * _CELL


def _role(token: int, step: int, kept: tuple[int, ...]) -> str:
    if token == step:
        return "decode"
    return "cached" if token in kept else "wasted"


def _row(canvas: Canvas, step: int, kept: tuple[int, ...]) -> None:
    y = _GRID + step * _ROW
    for role, run in groupby(range(step + 1), lambda token: _role(token, step, kept)):
        tokens = list(run)
        canvas.rect(_x(tokens[0]), y, len(tokens) * _CELL - 2, _ROW - 1, role)
