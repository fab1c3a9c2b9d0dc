"""The metric sheet: what was not measured says so, and counters subtract."""

import pytest

from kvlib.metrics import Metrics, WorkCounters, growth_exponent
from kvlib.waste import Allocation, split


def test_work_since_a_snapshot_is_the_difference():
    counters = WorkCounters(tokens_forwarded=3, bytes_read=10)
    counters.kernels["sdpa"] += 2
    before = counters.snapshot()
    counters.tokens_forwarded += 4
    counters.kernels["sdpa"] += 1
    work = counters.since(before)
    assert (work.tokens_forwarded, work.bytes_read, work.kernels["sdpa"]) == (4, 0, 1)
    assert before.kernels["sdpa"] == 2


def test_a_row_says_what_was_not_measured():
    row = Metrics("seven rows", admitted_requests=7, split=split(20, [Allocation(8, 5, 5)])).row()
    assert row["admitted_requests"] == "7"
    assert row["split"] == "25.0% used, reservation 0.0%, internal 15.0%, external 0.0%"
    assert row["ttft_s"] == "not measured"


@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_the_exponent_of_a_power_is_that_power(power):
    xs = [16, 32, 64, 128]
    assert growth_exponent(xs, [5 * x**power for x in xs]) == pytest.approx(power)


@pytest.mark.parametrize("xs, ys", [([1], [1]), ([2, 2], [1, 4]), ([1, 2], [1, 0]), ([1, 2], [1])])
def test_no_slope_through_less_than_two_points(xs, ys):
    with pytest.raises(ValueError, match="two different positive points"):
        growth_exponent(xs, ys)
