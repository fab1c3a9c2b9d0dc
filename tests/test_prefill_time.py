"""A prompt's time by hand: what the roofline says, in parts and as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.catalog import gpu, model
from kvlib.prefill_time import Prefill
from kvlib.roofline import prefill_cost, step_seconds

LLAMA, H100 = model("Llama-3-8B"), gpu("H100 SXM5")
PREFILL = Prefill(H100, LLAMA)


def test_a_whole_prompt_takes_what_the_roofline_says():
    for tokens in (1, 100, 5000):
        cost = prefill_cost(LLAMA, tokens, weight_dtype="bfloat16", kv_dtype="bfloat16")
        assert PREFILL(tokens) == step_seconds(H100, cost)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_operations_of_two_parts_are_those_of_the_whole(new, cached):
    """Far beyond the ridge both parts are bound by arithmetic, and their times add up."""
    new, cached = new + 2000, cached + 2000
    parts = PREFILL(cached) + PREFILL(new, cached)
    assert parts == pytest.approx(PREFILL(cached + new), rel=1e-12)
    assert PREFILL(new, cached) > PREFILL(new)


def test_cards_share_and_an_efficiency_divides():
    eight = Prefill(H100, LLAMA, num_gpus=8, efficiency=0.5)
    assert eight(4096) * 4 == pytest.approx(PREFILL(4096))


@pytest.mark.parametrize("efficiency", [0, -0.1, 1.1, float("nan")])
def test_an_efficiency_that_is_no_share_is_refused(efficiency):
    with pytest.raises(ValueError, match="efficiency must be above 0 and at most 1"):
        Prefill(H100, LLAMA, efficiency=efficiency)


@pytest.mark.parametrize(
    "wrong, name",
    [
        ((0, 5), "new_tokens"),
        ((1.0, 0), "new_tokens"),
        ((2, -1), "cached_tokens"),
        ((1, 1.0), "cached_tokens"),
    ],
)
def test_a_step_of_no_tokens_or_behind_fewer_than_none_is_refused(wrong, name):
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        PREFILL(*wrong)


def test_of_a_model_of_experts_only_the_active_ones_are_computed():
    experts = model("Mixtral-8x7B")
    assert experts.active_params < experts.params
    cost = prefill_cost(experts, 8000, weight_dtype="bfloat16", kv_dtype="bfloat16")
    assert Prefill(H100, experts)(8000) == step_seconds(H100, cost)


def test_a_prefill_knows_its_layers_and_refuses_no_cards():
    prefill = Prefill(H100, LLAMA)
    assert (prefill.num_layers, prefill.token_bytes) == (32, 131_072)
    for wrong in (0, 1.5):
        with pytest.raises((TypeError, ValueError), match="num_gpus must be"):
            Prefill(H100, LLAMA, num_gpus=wrong)
