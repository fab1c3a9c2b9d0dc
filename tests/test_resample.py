"""What the scripts about traces count, on cases that can be checked by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvlib.request import ContentPiece, Request

MEASURE = Path(__file__).resolve().parents[1] / "measure"


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(MEASURE)
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    return __import__(request.param)


def turns(*rows: tuple[float, int, int]) -> list[Request]:
    """Requests from (arrival, session, tokens of context), one of the tokens being the output."""
    return [
        Request(i, at, tokens - 1, 1, session_id=session)
        for i, (at, session, tokens) in enumerate(rows)
    ]


@pytest.mark.parametrize("script", ["resample"], indirect=True)
def test_an_interval_holds_its_value_and_narrows_with_more_parts(script: ModuleType) -> None:
    few = [(1, 1), (3, 1), (8, 1), (0, 1)]
    wide, narrow = (script.ratio_interval(few * n, digits=3) for n in (1, 25))
    assert wide["value"] == narrow["value"] == 3
    assert wide["low"] < narrow["low"] < 3 < narrow["high"] < wide["high"]
    assert wide == script.ratio_interval(few, digits=3)
    # Weights count: 10 of 11 in all, not the mean of two ratios.
    assert script.ratio_interval([(0, 1), (10, 10)], digits=2)["value"] == 0.91


@pytest.mark.parametrize("script", ["trace_sessions"], indirect=True)
def test_a_tier_in_tokens_drops_the_session_used_longest_ago(script: ModuleType) -> None:
    week = turns((0, 0, 40), (1, 1, 40), (2, 0, 50), (3, 2, 40), (4, 1, 40), (5, 0, 60))
    # Of three returns: with 130 tokens all find their context. With 90, session 1 goes for 2, and
    # 0, the older one by then, goes for 1.
    assert script.returns_served(week, 130) == 100
    assert script.returns_served(week, 90) == pytest.approx(100 / 3)
    assert script.returns_served(week, 39) == 0


@pytest.mark.parametrize("script", ["trace_sessions"], indirect=True)
def test_a_context_stays_until_its_session_returns_or_its_time_is_over(script: ModuleType) -> None:
    never = float("inf")
    kept = script.keeping(10, stays=[(4, 100), (20, 10), (never, 10), (never, 40)])
    # One stays 4 s; one is given up after 10, before its return; two never return: 10 each.
    # 400 + 100 + 100 + 400 token-seconds: not the mean stay times the mean context, 340.
    assert kept == {
        "seconds": 10,
        "served_percent": 50.0,
        "stays_s": 8.5,
        "token_seconds": 250,
    }


@pytest.mark.parametrize("script", ["trace_sessions"], indirect=True)
def test_the_last_turns_are_counted_with_the_present_one_left_out(script: ModuleType) -> None:
    week = turns((0, 0, 10), (1, 1, 20), (2, 0, 30), (3, 1, 60), (4, 2, 50), (5, 1, 10))
    # Two turns in a row weigh 30, 50, 90, 110, 60.
    assert script.last_turns(week, 2) == {
        "num_turns": 2,
        "tokens": [30, 68, 110],
        "served_percent": 100.0,
    }
    assert script.last_turns(week, 1)["served_percent"] == 0


@pytest.mark.parametrize("script", ["trace_chat"], indirect=True)
def test_a_request_that_leaves_as_another_comes_does_not_run_beside_it(script: ModuleType) -> None:
    step = script.STEP_S
    first, second = Request(0, 0.0, 5, 2), Request(1, 2 * step, 5, 3)
    assert script.peak_running([first, second]) == 1
    assert script.peak_running([first, Request(1, step, 5, 3)]) == 2


@pytest.mark.parametrize("script", ["trace_chat"], indirect=True)
def test_neighbours_that_rise_and_fall_together_are_alike(script: ModuleType) -> None:
    assert script.likeness([1, 3, 1, 3]) == pytest.approx(-0.75)
    assert script.likeness([1, 1, 3, 3]) == pytest.approx(0.25)


@pytest.mark.parametrize("script", ["trace_sessions"], indirect=True)
def test_a_start_counts_as_known_where_another_session_had_it_before(script: ModuleType) -> None:
    def prompt(session: int, *pieces: tuple[int, int]) -> Request:
        found = tuple(ContentPiece("sys", *piece) for piece in pieces)
        return Request(0, 0.0, 100, 1, session_id=session, pieces=found)

    a, b, c = (0, 10), (1, 5), (2, 8)
    week = [prompt(0, a, b), prompt(1, a, c), prompt(0, a, b, c), prompt(1, c)]
    # Session 0 shares a and b with itself, 15 tokens; 10 of them session 1 had, too.
    assert script.known_elsewhere(week) == pytest.approx(100 * 10 / 15)
    # Then c may begin like b: at most 5 tokens more.
    assert script.most_alike(week[0], week[1]) == 15
    assert script.most_alike(week[0], week[2]) == 15
