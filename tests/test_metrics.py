"""The metric sheet: what was not measured says so, and counters subtract."""

from collections import Counter
from dataclasses import FrozenInstanceError, astuple

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


def test_new_counters_have_counted_nothing():
    assert astuple(WorkCounters()) == (0, 0, 0, 0, 0, 0, Counter())


def test_a_row_has_every_figure_and_a_sheet_stays_as_it_was_filled():
    asked = "split admitted_requests ttft_s tpot_s goodput_requests_per_s prefix_hit_rate work"
    names = [*asked.split(), "max_abs_error"]
    sheet = Metrics("nothing")
    assert sheet.row() == {"name": "nothing"} | dict.fromkeys(names, "not measured")
    with pytest.raises(FrozenInstanceError):
        sheet.ttft_s = 1.0


def test_figures_are_written_with_four_digits_and_work_in_tokens():
    row = Metrics("some", ttft_s=0.123456, work=WorkCounters(1234567, 8)).row()
    assert (row["ttft_s"], row["work"]) == ("0.1235", "1,234,567 tokens forwarded")
    assert Metrics("none", split=split(0, [])).row()["split"].startswith("0.0% used, reservation 0")


def test_a_slope_is_that_of_the_least_squares():
    assert growth_exponent([1, 2], [3, 24]) == pytest.approx(3)
    # In powers of 2: (0, 0), (1, 1), (2, 4) has the slope 2; (0, 0), (1, 2), (3, 2) has 8 / 14.
    assert growth_exponent([1, 2, 4], [1, 2, 16]) == pytest.approx(2)
    assert growth_exponent([1, 2, 8], [1, 4, 4]) == pytest.approx(4 / 7)


@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_the_exponent_of_a_power_is_that_power(power):
    xs = [16, 32, 64, 128]
    assert growth_exponent(xs, [5 * x**power for x in xs]) == pytest.approx(power)


@pytest.mark.parametrize("xs, ys", [([1], [1]), ([2, 2], [1, 4]), ([1, 2], [1, 0]), ([1, 2], [1])])
def test_no_slope_through_less_than_two_points(xs, ys):
    with pytest.raises(ValueError, match="two different positive points"):
        growth_exponent(xs, ys)
