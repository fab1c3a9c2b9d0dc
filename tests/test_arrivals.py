"""New arrival times keep their rate, by the law of exponential gaps and by hand."""

from itertools import pairwise

import pytest

from kvlib.arrivals import at_rate
from kvlib.request import Request


def test_arrival_times_keep_the_rate_and_the_seed():
    rows = [Request(i, None, 1, 1) for i in range(4000)]
    for seed in range(3):
        times = [r.arrival_s for r in at_rate(rows, 5.0, seed)]
        assert times == sorted(times) and times[0] == 0.0
        assert times[-1] == pytest.approx(800, rel=0.06)
        gaps = [b - a for a, b in pairwise(times)]
        # Of exponential gaps 1 - 1/e lie below the mean.
        assert sum(gap < 0.2 for gap in gaps) / 3999 == pytest.approx(0.632, abs=0.025)
    assert at_rate(rows, 5.0, 0) != at_rate(rows, 5.0, 1)
    assert at_rate([], 5.0) == []
    assert [r.arrival_s for r in at_rate(rows[:3], 0.5)] == [0, 2, 4]


def test_a_rate_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"above 0, got 0\.0"):
        at_rate([], 0.0)
