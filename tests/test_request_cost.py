"""The line that says what a request has cost: counts, and the times that are known."""

import pytest

from kvlib.request_cost import Cost

COUNTS = "prompt 10, cached 4, computed 9, recomputed 3, swapped 2, output 5, preempted 1"


@pytest.mark.parametrize(
    "times, said",
    [
        ((None, None, None), ""),
        ((0.25, None, None), ", waited 0.25 s"),
        ((0.25, 1.5, None), ", waited 0.25 s, TTFT 1.5 s"),
        ((0.0, 1.23456, 0.04), ", waited 0 s, TTFT 1.23 s, TPOT 0.04 s"),
    ],
)
def test_a_time_that_is_not_known_yet_is_left_out(times, said):
    cost = Cost(10, 4, 9, 3, 2, 5, 1, *times)
    assert cost.counts == COUNTS
    assert str(cost) == COUNTS + said
    with pytest.raises(AttributeError):
        cost.waited_s = 9.0
