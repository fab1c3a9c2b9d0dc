"""Where the time of a step went, from the spans of a profiler's trace.

A trace is nested: a layer's span contains those of its operators, an operator's those that it
calls. So the lengths of the spans do not add up to the step; the time that each has for itself
does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import fsum
from typing import NamedTuple


class Span(NamedTuple):
    """One box of a trace: what ran, in the half-open time `[start, end)`, in any unit."""

    name: str
    start: float
    end: float


def self_times(spans: Iterable[Span]) -> dict[str, float]:
    """Returns for each name the time in which its spans were the innermost ones.

    Args:
        spans: of one thread, in any order; two of them nest or do not touch.

    Raises:
        ValueError: a span ends before it starts, or two overlap without nesting.

    Example:
        >>> step = Span("step", 0, 10)
        >>> self_times([step, Span("layer", 1, 9), Span("mm", 2, 5), Span("mm", 5, 8)])
        {'step': 2.0, 'layer': 2.0, 'mm': 6.0}
    """
    found: dict[str, list[float]] = defaultdict(list)
    open_spans: list[Span] = []
    # Of two that start together the longer one is outside.
    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        if span.end < span.start:
            raise ValueError(f"{span} ends before it starts")
        while open_spans and open_spans[-1].end <= span.start:
            open_spans.pop()
        if open_spans:
            outer = open_spans[-1]
            if span.end > outer.end:
                raise ValueError(f"{span} and {outer} overlap, and neither contains the other")
            found[outer.name].append(span.start - span.end)
        found[span.name].append(span.end - span.start)
        open_spans.append(span)
    return {name: fsum(times) for name, times in found.items()}


def idle_time(spans: Iterable[Span], start: float, end: float) -> float:
    """Returns how long no span ran between two times.

    Args:
        spans: in any order; they may overlap.
        start: where to begin.
        end: where to stop.

    Raises:
        ValueError: `end` lies before `start`.

    Example:
        >>> idle_time([Span("a", 1, 4), Span("b", 3, 5), Span("c", 8, 12)], 0, 10)
        4.0
    """
    if end < start:
        raise ValueError(f"the end {end} lies before the start {start}")
    covered, at = [], start
    for span in sorted(spans, key=lambda each: each.start):
        first, last = max(span.start, at), min(span.end, end)
        if last > first:
            covered.append(last - first)
            at = last
    return end - start - fsum(covered)


def bound_by(moving_s: float, computing_s: float, busy_s: float, step_s: float) -> str:
    """Returns what to work on: 'overhead', 'bandwidth' or 'compute'.

    Overhead is time in which no kernel ran. Where it is more than half of the step, a faster kernel
    gains little, whatever the roofline says. Otherwise the longer of the two bounds names it.

    Args:
        moving_s: the bytes of the step over the bandwidth.
        computing_s: its operations over the peak.
        busy_s: how long kernels ran.
        step_s: how long the step took, at least `busy_s`.

    Raises:
        ValueError: a time is negative, or kernels ran for longer than the step.

    Example:
        >>> bound_by(5, 1, busy_s=6, step_s=7), bound_by(5, 1, busy_s=6, step_s=20)
        ('bandwidth', 'overhead')
    """
    if min(moving_s, computing_s, busy_s) < 0 or busy_s > step_s:
        raise ValueError(
            "times are at least 0 and kernels run inside of the step, got "
            f"{moving_s}, {computing_s}, busy {busy_s} of {step_s}"
        )
    if step_s - busy_s > step_s / 2:
        return "overhead"
    return "bandwidth" if moving_s >= computing_s else "compute"
