"""Spans of a trace: own times add up to the step, whatever the nesting."""

from __future__ import annotations

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.spans import Span, bound_by, idle_time, self_times


def nested(draw, start, end, depth):
    """Spans inside of [start, end), each with more inside."""
    cuts = sorted(draw(st.lists(st.integers(start, end), max_size=6)))
    spans = []
    for first, last in zip(cuts[::2], cuts[1::2], strict=False):
        spans.append(Span(draw(st.sampled_from("abc")), first, last))
        if depth and last > first:
            spans += nested(draw, first, last, depth - 1)
    return spans


@st.composite
def traces(draw):
    inside = nested(draw, 0, 50, 3)
    return draw(st.permutations([Span("step", 0, 50), *inside]))


@given(traces())
def test_own_times_are_those_of_the_innermost_span_at_each_instant(spans):
    times = self_times(spans)
    assert isclose(sum(times.values()), 50)
    for name in times:
        points = [at for at in range(50) if innermost_names(spans, at) == name]
        assert times[name] == len(points)


def innermost_names(spans, at):
    """Of equal spans the one that comes later in the sort is inside."""
    ordered = sorted(spans, key=lambda s: (s.start, -s.end))
    return [s for s in ordered if s.start <= at < s.end][-1].name


@given(traces(), st.integers(0, 50), st.integers(0, 50))
def test_idle_is_what_no_span_covers(spans, a, b):
    start, end = sorted((a, b))
    inside = [s for s in spans if s.name != "step"]
    free = [at for at in range(start, end) if not any(s.start <= at < s.end for s in inside)]
    assert idle_time(inside, start, end) == len(free)


def test_the_sum_of_lengths_counts_what_is_nested_twice():
    spans = [Span("step", 0, 10), Span("layer", 0, 10), Span("mm", 0, 10)]
    assert sum(s.end - s.start for s in spans) == 30
    assert self_times(spans) == {"step": 0, "layer": 0, "mm": 10}


@pytest.mark.parametrize(
    "spans", [[Span("a", 2, 1)], [Span("a", 0, 5), Span("b", 3, 8)]], ids=["backwards", "crossing"]
)
def test_what_is_no_nesting_is_refused(spans):
    with pytest.raises(ValueError, match=r"ends before|overlap"):
        self_times(spans)


def test_overhead_beyond_half_of_a_step_comes_first():
    assert bound_by(1, 9, busy_s=5, step_s=10) == "compute"
    assert bound_by(9, 1, busy_s=5, step_s=10) == "bandwidth"
    assert bound_by(9, 1, busy_s=4.9, step_s=10) == "overhead"
    for times in ((-1, 1, 1, 2), (1, -1, 1, 2), (1, 1, -1, 2), (1, 1, 3, 2)):
        with pytest.raises(ValueError, match="got"):
            bound_by(*times)
    with pytest.raises(ValueError, match="before the start"):
        idle_time([], 2, 1)


@pytest.mark.parametrize(
    "times, said",
    [
        ((0, 1, 1, 1), "compute"),
        ((1, 0, 1, 1), "bandwidth"),
        ((1, 1, 2, 2), "bandwidth"),
        ((0, 0, 0, 0), "bandwidth"),
        ((1, 9, 0, 1), "overhead"),
    ],
)
def test_a_time_may_be_nothing_and_a_step_all_kernels(times, said):
    assert bound_by(*times) == said


def test_no_time_is_idle_between_equal_times():
    assert idle_time([Span("a", 1, 4)], 2, 2) == idle_time([], 5, 5) == 0
