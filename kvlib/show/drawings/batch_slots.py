"""Who sits in which row of a batch, step by step: a batch that waits, and rows that refill."""

from __future__ import annotations

from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas
from kvlib.workloads import sample

POLICIES = {"static": "the batch waits for its longest", "refill": "a free row refills at once"}
_LEFT, _TOP, _ROW, _HIGH = 62, 84, 22, 18


class Stay(NamedTuple):
    """One request in one row, from step `start` up to but not including step `end`."""

    request: int
    row: int
    start: int
    end: int


@cache
def answers() -> tuple[int, ...]:
    """Returns how many tokens 16 chat requests are answered with, a step a token.

    Example:
        >>> answers()[:4]
        (112, 413, 96, 392)
    """
    return tuple(r.output_tokens for r in sample("azure-conv", n=16, seed=0).requests)


def stays(lengths: tuple[int, ...], num_rows: int, policy: str) -> list[Stay]:
    """Returns where and when each request runs, all of them waiting in line from the start.

    Example:
        >>> stays((2, 5, 3, 1), 2, "static")[2]  # waits until request 1 is done
        Stay(request=2, row=0, start=5, end=8)
        >>> stays((2, 5, 3, 1), 2, "refill")[2]
        Stay(request=2, row=0, start=2, end=5)
    """
    found: list[Stay] = []
    free = [(0, row) for row in range(num_rows)]
    for request, length in enumerate(lengths):
        if policy == "static" and request % num_rows == 0:
            begin = max((stay.end for stay in found), default=0)
            free = [(begin, row) for row in range(num_rows)]
        start, row = heappop(free)
        found.append(Stay(request, row, start, start + length))
        heappush(free, (start + length, row) if policy == "refill" else (10**9, row))
    return found


def steps_and_idle(lengths: tuple[int, ...], num_rows: int, policy: str) -> tuple[int, float]:
    """Returns how many steps all requests take, and which share of the rows' steps is idle.

    Example:
        >>> steps_and_idle((2, 5, 3, 1), 2, "static")  # 8 steps of 2 rows for 11 tokens
        (8, 0.3125)
        >>> steps_and_idle((2, 5, 3, 1), 2, "refill")
        (6, 0.08333333333333337)
    """
    steps = max(stay.end for stay in stays(lengths, num_rows, policy))
    return steps, 1 - sum(lengths) / (steps * num_rows)


def _rows(canvas: Canvas, num_rows: int, policy: str, scale: float) -> None:
    steps, _ = steps_and_idle(answers(), num_rows, policy)
    for row in range(num_rows):
        y = _TOP + row * _ROW
        canvas.text(MARGIN, y + 14, f"row {row}")
        canvas.rect(_LEFT, y, steps * scale, _HIGH, "wasted")
    for request, row, start, end in stays(answers(), num_rows, policy):
        x, y, wide = _LEFT + start * scale, _TOP + row * _ROW, (end - start) * scale
        canvas.rect(x, y, wide, _HIGH, "used", "paper")
        if wide > 20:
            canvas.text(x + wide / 2, y + 13, str(request), "middle", size=12, role="paper")
    canvas.line(
        [(_LEFT + steps * scale, _TOP - 6), (_LEFT + steps * scale, _TOP + num_rows * _ROW)],
        "ink",
        1.5,
    )


@drawing(
    batch_size=Slider([2, 3, 4, 5, 6, 8], 4, "batch size (rows)"),
    policy=Choice(list(POLICIES), "static", "when a request is done", POLICIES),
)
def static_batch(batch_size: int, policy: str) -> str:
    """Draws the rows of a batch over time, with the steps in which a row waits for the longest."""
    steps, idle = steps_and_idle(answers(), batch_size, policy)
    longest, _ = steps_and_idle(answers(), batch_size, "static")
    verdict = f"{steps:,} steps; the rows are idle {100 * idle:.0f} % of the time."
    if policy == "refill":
        verdict += f" Static batches take {longest / steps:.2f} x as long."
    low = _TOP + batch_size * _ROW + 22
    canvas = Canvas(
        "static_batch",
        low + 40,
        f"16 chat requests in {batch_size} rows",
        f"{batch_size} rows over {steps:,} steps, {POLICIES[policy]}. {verdict}",
        under=f"{POLICIES[policy].capitalize()}; one step is one token a row",
    )
    canvas.key(MARGIN, 70, "used", "a request, by number")
    canvas.key(MARGIN + 186, 70, "wasted", "idle")
    _rows(canvas, batch_size, policy, (WIDTH - MARGIN - _LEFT) / longest)
    canvas.paragraph(low, verdict, bold=True)
    return canvas.svg()
