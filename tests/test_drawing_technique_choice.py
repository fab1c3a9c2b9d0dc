"""The choice among techniques shows the record's numbers, and leaves whom the conditions leave."""

import json
from importlib.resources import files

import pytest

from kvlib import measured
from kvlib.show.drawings import find
from kvlib.show.drawings.technique_choice import misses

DRAW = find("technique_choice").draw
KEPT = json.loads((files("kvlib") / "data" / "techniques.json").read_text(encoding="utf-8"))["rows"]
ROWS = measured.load("techniques.cpu")["data"]["rows"]


def test_what_is_kept_for_the_drawing_is_the_record():
    exact = ROWS[0]["perplexity"]
    assert len(KEPT) == len(ROWS) >= 14
    for kept, row in zip(KEPT, ROWS, strict=True):
        assert kept["technique"] == row["technique"]
        assert kept["saved"] == row["saved"]
        assert kept["needle_asked_later"] == row["needle_asked_later"]
        assert kept["perplexity_ratio"] == pytest.approx(row["perplexity"] / exact, abs=1e-4)


def test_every_exact_technique_is_exact():
    exact = [row for row in ROWS if not row["lossy"]]
    assert len(exact) == 4
    for row in exact:
        assert row["max_logit_error"] < 5e-4 and row["other_tokens"] == 0
        assert row["perplexity"] == ROWS[0]["perplexity"]


def test_every_row_has_all_its_columns():
    columns = {"nbytes", "saved", "max_logit_error", "perplexity", "step_s", "loses"}
    columns |= {"needle_asked_with_it", "needle_asked_later", "times_exact"}
    for row in ROWS:
        assert columns <= row.keys() and row["loses"]


@pytest.mark.parametrize(
    ("condition", "missing"),
    [
        ((0.5, None, False), ""),
        ((0.51, None, False), "bytes"),
        ((0.5, 0.2, False), ""),
        ((0.5, 0.19, False), "text"),
        ((0.5, None, True), "needle"),
    ],
)
def test_a_technique_misses_the_first_condition_it_does_not_meet(condition, missing):
    row = {"saved": 0.5, "perplexity_ratio": 1.2, "needle_asked_later": 0.89}
    assert misses(row, *condition) == missing


def test_the_picture_names_who_is_left():
    svg = DRAW(saved=0.7, worse=None, later=False)
    left = [row["technique"] for row in KEPT if row["saved"] >= 0.7]
    assert f"{len(left)} of {len(KEPT)} are left" in svg
    assert svg.count(">left<") == len(left)
