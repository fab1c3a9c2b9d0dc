"""What one step holds, and what attention reads in it."""

import pytest

from kvlib.plan import SequenceTooLong
from kvlib.request import Request
from kvlib.scheduled_step import Step, StepLimits
from kvlib.served import ServedRequest


def test_what_a_step_may_hold_if_nobody_says():
    limits = StepLimits()
    assert limits == StepLimits(8192, 256, chunked_prefill=True, prefill_first=False)
    with pytest.raises(AttributeError):
        limits.max_tokens = 1
    with pytest.raises(AttributeError):
        Step().num_token = 1  # nor can a count be misspelt


@pytest.mark.parametrize("name", ["max_tokens", "max_running"])
def test_a_step_that_holds_nothing_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        StepLimits(**{name: 0})


@pytest.mark.parametrize("chunked, most", [(False, 7), (True, 10**9)])
def test_a_prompt_that_fits_into_no_step_is_refused(chunked, most):
    limits = StepLimits(max_tokens=7, chunked_prefill=chunked)
    limits.require_prompt(Request(0, None, most, 1))
    if not chunked:
        with pytest.raises(SequenceTooLong, match="request 3 has a prompt of 8 tokens, a"):
            limits.require_prompt(Request(3, None, 8, 1))


@pytest.mark.parametrize(
    ("work", "counts"),
    [
        ([], (0, 0, 0)),
        ([(0, 1)], (1, 1, 1)),
        ([(6, 1)], (1, 7, 7)),
        ([(3, 2)], (2, 5, 4 + 5)),
        ([(0, 5)], (5, 5, 1 + 2 + 3 + 4 + 5)),
        ([(10, 4)], (4, 14, 11 + 12 + 13 + 14)),
        ([(3, 2), (6, 1)], (3, 5 + 7, 4 + 5 + 7)),
    ],
)
def test_attention_reads_each_key_once_and_scores_each_pair(work, counts):
    """Two tokens behind three: 5 keys, 4 + 5 pairs. One behind six: 7 keys and pairs."""
    step = Step()
    for before, n in work:
        job = ServedRequest(Request(0, None, 9, 1), 0, 0.0, 9, 9, num_computed=before)
        step.work.append((job, n))
    assert (step.num_tokens, *step.attention()) == counts
