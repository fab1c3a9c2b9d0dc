"""Percentiles are exact; their intervals cover as often as said, if values are independent."""

from fractions import Fraction
from math import comb, inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.histogram import Histogram
from kvlib.percentiles import _interval_ranks, percentile, percentile_interval, requests_needed

times = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60)


@given(times, st.integers(0, 100))
def test_it_is_the_value_that_the_histogram_comes_near_to(values: list[float], p: int) -> None:
    near = Histogram(0.01)
    for value in values:
        near.add(value)
    exact = percentile(values, p)
    assert exact in values
    assert near.percentile(p) == pytest.approx(exact, rel=0.0101)


@given(times, st.floats(0, 100))
def test_so_many_are_not_above_it_and_fewer_not_above_the_one_before(
    values: list[float], p: float
) -> None:
    found = percentile(values, p)
    assert sum(value <= found for value in values) >= p * len(values) / 100 - 1e-9
    assert sum(value < found for value in values) <= p * len(values) / 100 + 1e-9


def below(n: int, k: int, percent: int) -> Fraction:
    """P(B < k), exactly."""
    q = Fraction(percent, 100)
    return sum((comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(k)), Fraction(0))


@pytest.mark.parametrize("p", [1, 10, 50, 90, 99])
@pytest.mark.parametrize("n", [1, 5, 6, 40, 367, 368, 1000])
def test_the_ranks_are_the_closest_that_leave_the_tails(n: int, p: int) -> None:
    low, high = _interval_ranks(n, p)
    tail = Fraction(25, 1000)
    assert below(n, low, p) <= tail < below(n, low + 1, p)
    assert 1 - below(n, high, p) <= tail < 1 - below(n, high - 1, p)
    assert (low >= 1 and high <= n) == (n >= requests_needed(p))


def test_a_tail_may_be_all_that_the_confidence_leaves() -> None:
    """Of two values both lie below the median in a quarter of the cases, and both above in one."""
    assert _interval_ranks(2, 50, 0.5) == (1, 2)
    assert _interval_ranks(2, 50, 0.51) == (0, 3)


def test_of_few_values_0_percent_is_the_least_and_100_the_greatest() -> None:
    assert [percentile([3, 1, 2], p) for p in (0, 33, 34, 67, 100)] == [1, 1, 2, 3, 3]


def test_an_end_that_no_value_bounds_is_open() -> None:
    assert percentile_interval([5.0] * 100, 99) == (5.0, inf)
    assert percentile_interval([5.0] * 5, 50) == (0.0, inf)
    assert percentile_interval([1.0, 2.0, inf, 3.0, 4.0, 5.0], 50) == (1.0, inf)


def test_intervals_of_independent_draws_cover_the_true_percentile_as_often_as_said() -> None:
    """Of the uniform distribution, whose percentiles are known; 400 samples of 500."""
    random = Random(0)
    for p, confidence in ((99, 0.95), (50, 0.8)):
        hits = 0
        for _ in range(400):
            low, high = percentile_interval([random.random() for _ in range(500)], p, confidence)
            hits += low <= p / 100 <= high
        # Three standard deviations below what was said, and not far above.
        slack = 3 * (confidence * (1 - confidence) / 400) ** 0.5
        assert confidence - slack <= hits / 400 <= confidence + 0.04


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: percentile([], 50), "at least 1 value, got 0"),
        (lambda: percentile([1.0], 101), r"within \[0, 100\], got 101"),
        (lambda: percentile([1.0], -0.5), r"within \[0, 100\], got -0.5"),
        (lambda: percentile([1.0, nan, 2.0, nan], 50), "of numbers, 2 of 4 values are none"),
        (lambda: percentile_interval([nan], 50), "of numbers, 1 of 1 values are none"),
        (lambda: percentile_interval([1.0], 100), r"within \(0, 100\), got 100"),
        (lambda: percentile_interval([1.0], 50, 1.0), "got 1.0"),
        (lambda: percentile_interval([1.0], 50, 0.0), r"within \(0, 1\), got 0.0"),
        (lambda: percentile_interval([1.0], 50, -0.5), "got -0.5"),
        (lambda: percentile_interval([], 50), "n must be at least 1, got 0"),
        (lambda: requests_needed(0), "got 0"),
    ],
)
def test_what_cannot_be_asked_is_refused(call, said) -> None:
    with pytest.raises(ValueError, match=said):
        call()
