"""The quantile drawing tells what the simulation counts, between its two bounds."""

import pytest

from kvlib.request import Request
from kvlib.show.drawings import find
from kvlib.show.drawings.reservation_quantile import MAX_SEQ_LEN, chats, reservation_quantile, tried

QUANTILES = find("reservation_quantile").controls["quantile"].values
RATES = find("reservation_quantile").controls["rate"].values


def test_the_rate_changes_no_length():
    def lengths(requests: tuple[Request, ...]) -> list[tuple[int, int]]:
        return [(r.prompt_tokens, r.output_tokens) for r in requests]

    assert lengths(chats(0.1)) == lengths(chats(4))
    assert all(sum(pair) <= MAX_SEQ_LEN for pair in lengths(chats(1)))


@pytest.mark.parametrize("rate", RATES)
def test_no_quantile_is_better_than_the_oracle_or_worse_than_the_maximum(rate):
    best, worst = tried(rate, "oracle").turned_away, tried(rate, "maximum").turned_away
    for quantile in QUANTILES:
        assert best <= tried(rate, quantile).turned_away <= worst
    assert tried(rate, "oracle").overflowed == tried(rate, "maximum").overflowed == 0


def test_in_quiet_times_a_small_quantile_saves_nothing():
    """Nobody is turned away at any quantile, so a smaller one only lets more outgrow it."""
    runs = [tried(0.1, quantile) for quantile in QUANTILES]
    assert {run.turned_away for run in runs} == {0}
    outgrown = [run.overflowed for run in runs]
    assert outgrown == sorted(outgrown, reverse=True)
    assert (outgrown[0], outgrown[-1]) == (70, 1)


def test_under_load_the_best_quantile_lies_in_the_middle():
    away = [tried(2, quantile).turned_away for quantile in QUANTILES]
    assert QUANTILES[away.index(min(away))] == 0.9
    assert away[0] > min(away) < away[-1]


def test_the_sentence_is_the_simulations():
    assert "32 of 100 are turned away, 3 outgrow" in reservation_quantile(0.9, 2)
