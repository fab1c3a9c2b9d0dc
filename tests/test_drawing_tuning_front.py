"""The points drawn are the record's means, the front is the library's, and the verdict is right."""

import json
import re
from dataclasses import astuple
from math import fsum
from pathlib import Path

import pytest

from kvlib import measured
from kvlib.ranking import pareto_front
from kvlib.show.drawings.tuning_front import CLOCKS, TRACES, VALUES, points, tuning_front
from kvlib.tuning import Setting, grid

DATA = Path(__file__).resolve().parents[1] / "kvlib" / "data" / "tuning.json"
SETTINGS = grid(Setting(), **VALUES)


def drawn(trace, clock, setting):
    return tuning_front(trace, clock, *astuple(setting))


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("trace", TRACES)
def test_the_points_are_means_of_the_record(trace, clock):
    record = measured.load("trace_tuning.cpu")["data"]
    assert json.loads(DATA.read_text())["values"] == record["values"] == VALUES
    stretches = record[f"{clock}, {trace}"]
    there = points(trace, clock)
    assert list(there) == SETTINGS
    for column, figure in (("good_percent", "good"), ("tpot_p99_ms", "tpot_ms")):
        means = [round(fsum(each) / 3, 1) for each in zip(*stretches[column], strict=True)]
        assert [getattr(point, figure) for point in there.values()] == means


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("trace", TRACES)
def test_who_is_said_to_be_on_the_front_is_beaten_by_nobody(trace, clock):
    there = points(trace, clock)
    on_front = 0
    for setting, (good, ms) in there.items():
        svg = drawn(trace, clock, setting)
        better = [p for p in there.values() if p[0] >= good and p[1] <= ms and p != (good, ms)]
        assert (">On the front" in svg) == (not better)
        on_front += not better
        if said := re.search(r"others, no slower, keep (\d+) %", svg):
            assert said[1] == f"{max(p.good for p in better):.0f}"
        assert f">{good:.0f} % keep the target, {ms:.0f} ms a token<" in svg
    assert on_front >= len(pareto_front(there)) > 1


def test_the_other_trace_is_scored_with_the_same_setting():
    mine = Setting(max_tokens=256)
    svg = drawn("azure-code", "take turns", mine)
    there, default = (points("azure-conv", "take turns")[s].good for s in (mine, Setting()))
    assert f"On azure-conv it is {there:.0f} %, with the default {default:.0f} %." in svg


def test_yours_lies_on_the_default_until_a_knob_is_turned():
    here = drawn("azure-conv", "overlap", Setting())
    marks = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="10" height="10"', here)
    assert len(marks) == 2 and marks[0] == marks[1]
    turned = drawn("azure-conv", "overlap", Setting(max_tokens=256))
    moved = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="10" height="10"', turned)
    assert moved[0] == marks[0] and float(moved[1][0]) > float(moved[0][0])
