"""What is at once and what three plans assume, where the answers are known beforehand."""

from dataclasses import replace

import pytest

from kvlib import catalog
from kvlib.memory_plan import plan_capacity
from kvlib.plan_interval import at_once, plan_range
from kvlib.request import Request

LLAMA, H100, A10 = catalog.model("Llama-3-8B"), catalog.gpu("H100 SXM5"), catalog.gpu("A10")
PLAN = plan_capacity(LLAMA, A10, max_batched_tokens=2048)


def test_what_is_at_once_holds_prompts_and_half_of_the_answers():
    """Of 40 s that both run, 30 are the second's: 95 and 85 tokens, 87.5 on average."""
    requests = [Request(0, None, 90, 10), Request(1, None, 70, 30)]
    plan = replace(PLAN, block_size=1, num_blocks=10_000)
    low, likely, high = at_once(plan, requests)
    assert (low, likely) == pytest.approx((10_000 / 100, 10_000 / 87.5))
    # As many hold all tokens when they hold 1.645 deviations less than on average.
    assert 87.5 * high - 1.645 * (18.75 * high) ** 0.5 == pytest.approx(10_000)
    assert at_once(plan, requests, z=0)[2] == pytest.approx(likely)
    in_blocks = at_once(replace(plan, block_size=16, num_blocks=625), requests)
    assert in_blocks[:2] == pytest.approx((10_000 / 107.5, 10_000 / 95))  # half a block less a half


def test_the_low_end_counts_whole_answers_and_their_spread():
    requests = [Request(0, None, 90, 10), Request(1, None, 90, 30)]
    low, _, _ = at_once(replace(PLAN, block_size=1, num_blocks=10_000), requests, z=2)
    assert 115 * low + 2 * (75 * low) ** 0.5 == pytest.approx(10_000)


def test_what_cannot_be_counted_at_once_is_refused():
    with pytest.raises(ValueError, match="at least one request"):
        at_once(PLAN, [])
    local = plan_capacity(catalog.model("Gemma-2-9B"), H100)
    with pytest.raises(ValueError, match="21 of 42 layers keep a window only"):
        at_once(local, [Request(0, None, 9, 9)])


def test_without_being_told_the_largest_step_has_8192_tokens_and_256_sequences_on_one_card():
    whole = {"max_batched_tokens": 8192, "max_num_seqs": 256, "num_gpus": 1}
    assert plan_range(LLAMA, H100) == plan_range(LLAMA, H100, **whole)
    assert list(plan_range(LLAMA, H100)) == ["low", "likely", "high"]


def test_where_the_worst_does_not_fit_there_is_no_plan_for_it():
    plans = plan_range(LLAMA, catalog.gpu("L4"))
    assert plans["low"] is None and plans["likely"].num_blocks > 0
    assert list(plan_range(catalog.model("Llama-3-70B"), H100).values()) == [None] * 3
