"""The picture of a load test: what it says holds over seeds, and either watch is told rightly."""

import re

import pytest

from kvlib.show.drawings import find
from kvlib.show.drawings.load_rate import CLOSED, DUE, NUM_BLOCKS, OPEN, SENT, TARGET, under_load


def kept(**values) -> int:
    return int(re.search(r">(\d+) % keep", find("load_rate")(**values)).group(1))


def test_the_memory_is_what_nine_tenths_of_the_card_leave_beside_the_weights() -> None:
    assert NUM_BLOCKS == (21_600_000_000 - 16_060_522_496) // (16 * 131_072)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_past_the_knee_more_load_is_less_goodput(seed: int) -> None:
    calm, knee, flood = (under_load(rate, n=400, seed=seed) for rate in (1, 2.25, 4))
    assert 0.9 < calm.goodput(TARGET) < 1.1
    assert knee.goodput(TARGET) > 1.9 > 1.0 > flood.goodput(TARGET)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sixteen_users_hide_an_overload_that_the_due_times_show(seed: int) -> None:
    run = under_load(4, CLOSED, seed=seed)
    assert run.as_if_due_when_sent().good_share(TARGET) > 0.95
    assert run.good_share(TARGET) < 0.3


def test_what_the_picture_says_is_what_the_run_came_to() -> None:
    assert kept() == round(100 * under_load(2, OPEN, 0).good_share(TARGET)) == 100
    for rate in (2.5, 4):
        assert kept(rate=rate) == round(100 * under_load(rate).good_share(TARGET)) < 100
    assert kept(rate=4, send=CLOSED, watch=SENT) == 100
    assert kept(rate=4, send=CLOSED, watch=DUE) == 15


def test_every_request_has_a_mark_and_bad_ones_are_taller() -> None:
    svg = find("load_rate")(rate=2.5)
    marks = re.findall(r'width="([34])" height="(4|11)"', svg)
    assert len(marks) == 150
    bad = sum(mark == ("3", "11") for mark in marks)
    assert bad == 150 - round(150 * under_load(2.5).good_share(TARGET))
    assert {mark for mark in marks} == {("4", "4"), ("3", "11")}
