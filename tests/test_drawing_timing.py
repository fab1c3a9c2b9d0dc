"""The made-up machine has every trouble, and each step of the protocol removes its own."""

from itertools import product

import pytest

from kvlib.show.drawings import find
from kvlib.show.drawings.timing import (
    _CEILING,
    _WIDEST,
    REPEATS,
    TRUE_MS,
    WARM_UPS,
    estimates,
    runs,
    slowdowns,
)

TRUTH = TRUE_MS["B"] / TRUE_MS["A"]


def error(*protocol):
    return abs(estimates(*protocol)[1] / TRUTH - 1)


def test_one_cold_shot_of_each_takes_the_slower_way_for_the_faster():
    assert estimates(0, 1, "mean", False)[1] < 1 < TRUTH


def test_the_whole_protocol_is_within_two_percent():
    assert error(3, 21, "median", True) < 0.02


@pytest.mark.parametrize(
    "without", [(3, 1, "median", False), (3, 21, "mean", True), (3, 21, "median", False)]
)
def test_leaving_out_a_step_costs_accuracy(without):
    # One shot in turns may be right by luck; one after the other it is not.
    assert error(*without) > 2 * error(3, 21, "median", True)


def test_without_a_warm_up_a_short_run_believes_the_cold_start():
    assert estimates(0, 3, "median", True)[0] > 1.25 * estimates(3, 3, "median", True)[0]


def test_more_repeats_do_not_help_against_drift():
    assert error(3, 21, "median", False) > error(3, 3, "median", False) + 0.1


def test_taking_turns_saves_the_ratio_and_not_the_time():
    a, ratio = estimates(3, 21, "median", True)
    assert a > 1.2 * TRUE_MS["A"]
    assert ratio == pytest.approx(TRUTH, rel=0.02)


def test_both_orders_make_the_same_runs_on_the_same_machine():
    for in_turns in (False, True):
        done = runs(2, 5, in_turns)
        assert len(done) == 14
        assert sum(counts for _, counts, _ in done) == 10
        for (way, _, time), factor in zip(done, slowdowns(), strict=False):
            assert time == pytest.approx(TRUE_MS[way] * factor)


def test_everything_fits_on_the_axes():
    assert max(slowdowns()) * max(TRUE_MS.values()) < _CEILING
    for protocol in product(WARM_UPS, REPEATS, ("mean", "median"), (False, True)):
        assert 0 < estimates(*protocol)[1] < _WIDEST


def test_the_picture_says_that_its_times_are_made_up_and_what_it_found():
    svg = find("timing_protocol")()
    assert "Made-up run times" in svg
    assert ">B / A by the mean: 0.66<" in svg
    assert "truth 1.20" in svg
    assert ">Error of the ratio: -45 %<" in svg
