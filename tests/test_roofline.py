"""The roofline: bytes and operations of a step, and which of the two bounds it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.catalog import gpu, gpus, model
from kvlib.roofline import (
    StepCost,
    attainable_tflops,
    attention_flops,
    decode_cost,
    prefill_cost,
    prefill_flops,
    step_seconds,
)

SIXTEEN = {"weight_dtype": "bfloat16", "kv_dtype": "bfloat16"}


def test_a_decode_step_reads_the_weights_once_and_each_cache():
    llama = model("Llama-3-8B")
    one, many = (decode_cost(llama, batch, 1000, **SIXTEEN) for batch in (1, 32))
    assert one.weight_bytes == many.weight_bytes == 2 * llama.params
    assert many.kv_bytes == 32 * one.kv_bytes == 32 * 1000 * 131_072
    assert many.flops == 32 * one.flops


def test_attention_counts_a_multiply_add_twice_for_scores_and_sum():
    assert attention_flops(model("Llama-3-8B"), 10) == 4 * 32 * 32 * 128 * 10


def test_layers_with_a_window_stop_growing():
    gemma = model("Gemma-3-27B")
    ten_more = attention_flops(gemma, 2010) - attention_flops(gemma, 2000)
    assert ten_more == 10 * gemma.kv.num_full_layers * 4 * 32 * 128


def test_before_the_window_is_full_all_layers_grow():
    """Of 62 layers of Gemma-3-27B 52 see 1,024 tokens."""
    gemma = model("Gemma-3-27B")
    assert [attention_flops(gemma, n) // (4 * 32 * 128) for n in (1, 1024, 2000)] == [
        62,
        62 * 1024,
        10 * 2000 + 52 * 1024,
    ]


def test_a_context_longer_than_the_published_one_has_a_cost():
    llama = model("Llama-3-8B")
    assert llama.context_length == 8192
    assert decode_cost(llama, 2, 10_000, **SIXTEEN).kv_bytes == 2 * 10_000 * 131_072
    assert prefill_cost(llama, 10_000, **SIXTEEN).kv_bytes == 10_000 * 131_072


def test_prefill_is_linear_in_weights_and_quadratic_in_attention():
    llama = model("Llama-3-8B")
    attention = [prefill_flops(llama, n) - n * 2 * llama.params for n in (100, 200)]
    assert attention == [attention_flops(llama, 1) * n * (n + 1) // 2 for n in (100, 200)]


@given(st.sampled_from(gpus()), st.floats(0.01, 1e5))
def test_the_roof_is_the_lower_of_two_lines_and_meets_at_the_ridge(name, intensity):
    card = gpu(name)
    peak = card.bf16_dense_tflops or card.fp16_dense_tflops
    roof = attainable_tflops(card, intensity)
    if intensity < card.ridge_flop_per_byte:
        assert roof == pytest.approx(card.memory_bandwidth_gb_s * intensity / 1000)
    else:
        assert roof == pytest.approx(peak)
    assert roof <= peak * (1 + 1e-12)


@pytest.mark.parametrize("name", gpus())
def test_decode_of_one_sequence_takes_the_time_of_its_bytes(name):
    step = decode_cost(model("Llama-3-8B"), 1, 2048, **SIXTEEN)
    card = gpu(name)
    assert step.intensity < card.ridge_flop_per_byte
    expected = step.num_bytes / (card.memory_bandwidth_gb_s * 1e9)
    assert step_seconds(card, step) == pytest.approx(expected)


def test_a_mixture_of_experts_reads_the_weights_a_token_passes_through():
    mixtral = model("Mixtral-8x7B")
    step = decode_cost(mixtral, 1, 100, **SIXTEEN)
    assert step.weight_bytes == 2 * mixtral.active_params < mixtral.weight_bytes("bfloat16")


def test_a_prefill_reads_every_expert_and_its_own_cache():
    mixtral = model("Mixtral-8x7B")
    prompt = prefill_cost(mixtral, 100, **SIXTEEN)
    assert prompt.weight_bytes == 2 * mixtral.params
    assert prompt.kv_bytes == mixtral.kv_bytes(100, "bfloat16")
    attention = attention_flops(mixtral, 1) * 5050
    assert prompt.flops == prefill_flops(mixtral, 100) == 200 * mixtral.active_params + attention


def test_a_second_is_a_second():
    card = replace(gpu("L4"), bf16_dense_tflops=1.0, memory_bandwidth_gb_s=1000)
    assert step_seconds(card, StepCost(8, 0, 10**12)) == 1.0
    assert step_seconds(card, StepCost(10**12, 10**12, 10**12)) == 2.0


def test_from_421_tokens_on_no_batch_of_llama_3_8b_reaches_the_ridge_of_an_h100():
    llama, ridge = model("Llama-3-8B"), gpu("H100 SXM5").ridge_flop_per_byte
    assert decode_cost(llama, 10**6, 420, **SIXTEEN).intensity > ridge
    assert decode_cost(llama, 10**9, 421, **SIXTEEN).intensity < ridge
    assert decode_cost(llama, 512, 128, **SIXTEEN).intensity > ridge


def test_what_it_does_not_describe_is_refused():
    with pytest.raises(ValueError, match="DeepSeek-V3 is MLA"):
        decode_cost(model("DeepSeek-V3"), 1, 100, **SIXTEEN)
    with pytest.raises(ValueError, match="batch must be at least 1"):
        decode_cost(model("Llama-3-8B"), 0, 100, **SIXTEEN)
    with pytest.raises(ValueError, match="num_tokens must be at least 1"):
        prefill_flops(model("Llama-3-8B"), 0)
