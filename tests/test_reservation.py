"""How much is reserved, and what that is worth on requests the policy has not seen."""

import math
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.buddy import power_of_two
from kvlib.request import Request
from kvlib.reservation import (
    ReserveMaximum,
    ReserveOracle,
    ReservePercentile,
    ReservePowerOfTwo,
    ReservePrompt,
    judge,
    useful_share,
)


def requests(*pairs):
    return [Request(i, None, prompt, output) for i, (prompt, output) in enumerate(pairs)]


def test_the_papers_three_baselines():
    """PagedAttention §6.1: an output of 25 tokens is given 32."""
    (one,) = requests((7, 25))
    assert ReserveMaximum(2048).reserve(one) == 2048
    assert ReservePowerOfTwo().reserve(one) == 7 + 32
    assert ReserveOracle().reserve(one) == 7 + 25
    assert ReservePrompt().reserve(one) == 7 + 1


@given(prompt=st.integers(1, 5000), output=st.integers(1, 5000))
def test_power_of_two_reserves_at_most_twice_the_output(prompt, output):
    (one,) = requests((prompt, output))
    given_output = ReservePowerOfTwo().reserve(one) - prompt
    assert output <= given_output < 2 * output or given_output == output == 1


@pytest.mark.parametrize(
    "policy",
    [
        *(ReservePowerOfTwo(40), ReserveOracle(40), ReservePrompt(40), ReserveMaximum(40)),
        ReservePercentile([90], 1, 40),
    ],
)
def test_no_reservation_is_larger_than_the_maximum(policy):
    assert policy.reserve(requests((50, 90))[0]) == policy.max_seq_len == 40


@pytest.mark.parametrize("kind", [ReserveMaximum, ReservePowerOfTwo, ReserveOracle, ReservePrompt])
def test_a_policy_is_a_value(kind):
    policy = kind(40)
    assert policy == kind(40) != kind(41)
    with pytest.raises(AttributeError):
        policy.max_seq_len = 41


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 100))
def test_the_quantile_is_the_least_seen_length_that_covers_its_share(history, percent):
    learned = ReservePercentile(history, percent / 100).output_tokens
    assert learned in history
    assert 100 * sum(length <= learned for length in history) >= percent * len(history)
    assert 100 * sum(length < learned for length in history) < percent * len(history)


def test_a_quantile_is_the_decimal_it_is_written_as():
    """As binary floats, 0.07 * 100 is a little more than 7."""
    assert math.ceil(0.07 * 100) == 8
    assert ReservePercentile(range(1, 101), 0.07).output_tokens == 7
    policy = ReservePercentile(range(1, 101), 1)
    assert (policy.output_tokens, policy.quantile, policy.max_seq_len) == (100, 1, None)


@pytest.mark.parametrize(
    ("history", "quantile", "message"),
    [
        ([], 0.9, "history is empty"),
        ([3], 0, "quantile must be above 0 and at most 1, got 0"),
        ([3], 1.01, "got 1.01"),
        ([3], float("nan"), "got nan"),
        ([3, 0], 0.9, "an output length must be at least 1, got 0"),
    ],
)
def test_a_percentile_of_nothing_is_refused(history, quantile, message):
    with pytest.raises(ValueError, match=message):
        ReservePercentile(history, quantile)


def test_lengths_and_maxima_are_whole_numbers():
    for call in (ReserveMaximum, ReserveOracle, ReservePowerOfTwo, ReservePrompt):
        with pytest.raises(ValueError, match="max_seq_len must be at least 1, got 0"):
            call(0)
    with pytest.raises(ValueError, match="max_seq_len must be at least 1, got 0"):
        ReservePercentile([3], 1, max_seq_len=0)
    with pytest.raises(TypeError, match="an output length must be a whole number"):
        ReservePercentile([2.5], 0.5)


def test_three_requests_judged_by_hand():
    """Reserved 15, 25, 35; final 12, 25, 40: three empty, one request five short."""
    judged = judge(ReservePercentile([5], 1), requests((10, 2), (20, 5), (30, 10)))
    assert (judged.num_requests, judged.reserved_tokens, judged.final_tokens) == (3, 75, 77)
    assert (judged.unused_tokens, judged.overflowed) == (3, 1)
    assert judged.overflow_share == 1 / 3
    assert judged.unused_share == 3 / 75
    with pytest.raises(FrozenInstanceError):
        judged.overflowed = 0


def test_a_maximum_below_a_request_counts_as_overflow():
    assert judge(ReserveMaximum(10), requests((4, 4), (8, 8))).overflowed == 1


def test_a_useful_share_by_hand():
    """Outputs 2 and 4 steps long hold 4 and 8 of 8 and 16, on average: (8 + 32) / (16 + 64)."""
    two = requests((3, 2), (6, 4))
    assert useful_share(ReserveOracle(), two) == (2 * 4 + 4 * 8) / (2 * 5 + 4 * 10)
    assert useful_share(ReserveMaximum(16), two) == (2 * 4 + 4 * 8) / (6 * 16)
    rounded = useful_share(ReserveOracle(), two, power_of_two)
    assert rounded == (2 * 4 + 4 * 8) / (2 * 8 + 4 * 16)


def test_a_useful_share_needs_reservations_that_last():
    with pytest.raises(ValueError, match="request 1 grows to 16, 10 are reserved"):
        useful_share(ReserveMaximum(10), requests((4, 4), (8, 8)))


@pytest.mark.parametrize("call", [judge, useful_share])
def test_no_requests_no_verdict(call):
    with pytest.raises(ValueError, match="no requests"):
        call(ReserveOracle(), [])
