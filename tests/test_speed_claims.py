"""What a part's speed gives the whole, by hand and by every share."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.speed_claims import highest_rate, least_share, whole_gain

PARTS = st.dictionaries(st.sampled_from("abc"), st.floats(0.01, 100), min_size=1)


@given(PARTS, st.floats(1, 1000))
def test_a_whole_gains_no_more_than_its_parts_and_no_more_than_is_left(parts, factor):
    gain = whole_gain(parts, {"a": factor} if "a" in parts else {})
    assert 1 - 1e-9 <= gain <= factor + 1e-9
    if "a" in parts and len(parts) > 1:
        share = parts["a"] / sum(parts.values())
        assert gain <= 1 / (1 - share) + 1e-6
        assert share >= least_share(max(1.0, gain)) - 1e-6


def test_what_is_gone_takes_nothing_and_what_is_slower_costs():
    assert whole_gain({"a": 1.0}, {"a": inf}) == inf
    assert whole_gain({"a": 1.0, "b": 1.0}, {"a": inf}) == 2
    assert whole_gain({"a": 1.0, "b": 1.0}, {"a": 0.5}) == pytest.approx(2 / 3)
    assert whole_gain({"a": 0.0, "b": 1.0}, {"a": 2.0, "b": 4.0}) == 4
    assert whole_gain({"a": 0.25, "b": 0.25}, {"a": 2.0}) == pytest.approx(4 / 3)
    assert least_share(1) == 0 and least_share(2) == 0.5


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: whole_gain({"a": 1.0}, {"b": 2.0}), KeyError, "not among the parts"),
        (lambda: whole_gain({"a": -1.0, "b": 2.0}, {}), ValueError, "at least 0"),
        (lambda: whole_gain({"a": 0.0}, {}), ValueError, "one of them more"),
        (lambda: whole_gain({}, {}), ValueError, "parts cost"),
        (lambda: whole_gain({"a": 1.0}, {"a": 0.0}), ValueError, "above 0"),
        (lambda: least_share(0.9), ValueError, "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize(
    ("most", "rate"), [(0.05, None), (0.1, 1), (0.3, 2), (0.49, 2), (2.0, 4), (0.2, 1)]
)
def test_the_highest_rate_is_the_last_before_a_latency_is_broken(most, rate):
    assert highest_rate([(4, 1.0), (1, 0.1), (3, 0.5), (2, 0.3)], most) == rate
