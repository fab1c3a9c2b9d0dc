"""The histogram: percentiles within its precision, everything else exact, few buckets."""

import math
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvlib.histogram import Histogram

LEAST, MOST = sys.float_info.min, sys.float_info.max
VALUES = st.lists(
    st.one_of(
        st.just(0),
        st.integers(0, 10**6),
        st.floats(0, 1000, allow_subnormal=False),
        st.floats(LEAST, MOST),
    ),
    min_size=1,
    max_size=50,
)
PRECISIONS = st.sampled_from([1e-6, 0.001, 0.01, 0.1, 0.5])
ROUNDING = 1e-9


def filled(values, precision=0.01):
    histogram = Histogram(precision)
    for value in values:
        histogram.add(value)
    return histogram


def num_buckets(histogram):
    """Returns how many buckets take memory."""
    return len(histogram._buckets)


def true_percentile(values, p):
    """The least value that at least p percent of all do not exceed."""
    return sorted(values)[max(math.ceil(p * len(values) / 100), 1) - 1]


@given(VALUES, st.floats(0, 100), PRECISIONS)
@example([0, LEAST, MOST], 100, 0.5)
@example([MOST, MOST, 1], 50, 0.01)
@example([1, 2, 3, 4], 50, 1e-6)
def test_a_percentile_is_within_the_precision(values, p, precision):
    truth = true_percentile(values, p)
    found = filled(values, precision).percentile(p)
    assert abs(found - truth) <= (precision + ROUNDING) * truth


@given(st.integers(-300, 300), PRECISIONS)
def test_the_precision_holds_at_the_edges_of_buckets(bucket, precision):
    """Beside smaller and greater values, so that neither end of the range helps."""
    edge = ((1 + precision) / (1 - precision)) ** bucket
    for value in (edge, math.nextafter(edge, 0), math.nextafter(edge, math.inf)):
        found = filled([LEAST, value, MOST], precision).percentile(50)
        assert abs(found - value) <= (precision + ROUNDING) * value


@given(VALUES)
def test_count_mean_and_maximum_are_exact(values):
    histogram = filled(values)
    numerators = [value.as_integer_ratio() for value in values]
    total = sum(n * (2**1074 // d) for n, d in numerators)
    assert histogram.mean == total / (len(values) * 2**1074)
    assert histogram.count == len(values)
    assert histogram.max == max(values)
    assert histogram.percentile(100) <= max(values)
    assert histogram.percentile(0) >= min(values)


def test_the_mean_neither_drifts_nor_overflows():
    assert filled([1e16] + [1.0] * 1000).mean == (10**16 + 1000) / 1001
    assert filled([MOST, MOST]).mean == MOST
    assert filled([0.1] * 10).mean == 0.1


@given(VALUES, VALUES, st.floats(0, 100))
@example([5], [1], 0)
@example([1], [5], 0)
def test_merged_is_as_if_added_in_one(one, other, p):
    merged, both = filled(one), filled(one + other)
    merged.merge(filled(other))
    for histogram in (merged, both):
        assert histogram.count == len(one + other)
    assert merged.mean == both.mean
    assert merged.max == both.max
    assert merged.percentile(p) == both.percentile(p)
    assert num_buckets(merged) == num_buckets(both)


def test_merging_leaves_the_other_as_it_was():
    one, other = filled([1]), filled([5, 0])
    one.merge(other)
    one.add(7)
    assert (other.count, other.mean, other.max, num_buckets(other)) == (2, 2.5, 5, 1)


@pytest.mark.parametrize("precision", [0.001, 0.01, 0.1])
def test_memory_grows_with_the_logarithm_of_the_range_only(precision):
    histogram = filled([1 + 9 * n / 50_000 for n in range(50_001)], precision)
    a_decade = math.log(10) / math.log((1 + precision) / (1 - precision))
    assert num_buckets(histogram) <= a_decade + 2
    for exponent in range(1, 4):
        for n in range(1000):
            histogram.add(10 ** (exponent + n / 1000))
    assert num_buckets(histogram) <= 4 * a_decade + 2


def test_the_documented_number_of_buckets():
    assert num_buckets(filled([10 ** (n / 5000) for n in range(5000)])) in (115, 116, 117)


def test_values_below_the_least_normal_float_count_as_zero():
    histogram = filled([5e-324, 0.0, LEAST])
    assert num_buckets(histogram) == 1
    assert histogram.percentile(50) == 0
    assert histogram.percentile(100) == LEAST


@pytest.mark.parametrize("value", [-1, -5e-324, float("nan"), float("inf")])
def test_a_value_out_of_range_is_refused_and_nothing_changes(value):
    histogram = filled([3])
    with pytest.raises(ValueError, match=f"at least 0 and finite, got {value}"):
        histogram.add(value)
    assert (histogram.count, histogram.mean, histogram.max) == (1, 3, 3)


@pytest.mark.parametrize("precision", [0, -0.1, 0.51, 1e-7, float("nan")])
def test_a_precision_out_of_range_is_refused(precision):
    with pytest.raises(ValueError, match=r"within \[1e-06, 0.5\], got"):
        Histogram(precision)


@pytest.mark.parametrize("p", [-1, 100.1, float("nan")])
def test_a_percentile_out_of_range_is_refused(p):
    with pytest.raises(ValueError, match=rf"within \[0, 100\], got {p}"):
        filled([1]).percentile(p)


@pytest.mark.parametrize("ask", [lambda h: h.mean, lambda h: h.max, lambda h: h.percentile(50)])
def test_without_values_there_is_no_answer(ask):
    with pytest.raises(ValueError, match="no value was added"):
        ask(Histogram())


def test_other_precisions_do_not_merge_and_nothing_changes():
    histogram = filled([1])
    with pytest.raises(ValueError, match=r"only equal precisions merge: 0.01, 0.02"):
        histogram.merge(filled([2], 0.02))
    assert histogram.count == 1
