"""The clock says what the roofline says, and refuses what it cannot tell the time of."""

from dataclasses import replace
from math import inf, nan

import pytest

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.request import Request
from kvlib.roofline import decode_cost, prefill_cost, step_seconds
from kvlib.scheduled_step import Step
from kvlib.served import ServedRequest

H100, LLAMA = gpu("H100 SXM5"), model("Llama-3-8B")


def job(num_computed):
    return ServedRequest(Request(0, None, 1, 1), 0, 0.0, 1, 1, num_computed=num_computed)


@pytest.mark.parametrize("card", ["H100 SXM5", "A10", "V100 SXM2 32GB"])
@pytest.mark.parametrize("name", ["Llama-3-8B", "Llama-2-7B"])
@pytest.mark.parametrize("n", [1, 700, 8192])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8"])
def test_one_request_takes_what_the_roofline_says(card, name, n, kv_dtype):
    shape, dtypes = model(name), {"weight_dtype": "bfloat16", "kv_dtype": kv_dtype}
    clock = RooflineClock(gpu(card), shape, kv_dtype=kv_dtype)
    decode = step_seconds(gpu(card), decode_cost(shape, 1, n, **dtypes))
    assert clock.seconds(Step([(job(n - 1), 1)])) == pytest.approx(decode, rel=1e-12)
    prefill = step_seconds(gpu(card), prefill_cost(shape, n, **dtypes))
    assert clock.seconds(Step([(job(0), n)])) == pytest.approx(prefill, rel=1e-12)


def test_a_batch_reads_the_weights_once():
    dtypes = {"weight_dtype": "bfloat16", "kv_dtype": "bfloat16"}
    batch = step_seconds(H100, decode_cost(LLAMA, 32, 1000, **dtypes))
    step = Step([(job(999), 1) for _ in range(32)])
    assert RooflineClock(H100, LLAMA).seconds(step) == pytest.approx(batch, rel=1e-12)


def test_chunks_compute_what_the_whole_prompt_does_and_read_more():
    """Bound by operations, two halves of a prompt take as long as the whole of it."""
    clock = RooflineClock(H100, LLAMA)
    halves = clock.seconds(Step([(job(0), 4096)])) + clock.seconds(Step([(job(4096), 4096)]))
    assert halves == pytest.approx(clock.seconds(Step([(job(0), 8192)])), rel=1e-12)
    ones = sum(clock.seconds(Step([(job(n), 1)])) for n in range(8))
    assert ones > 7 * clock.seconds(Step([(job(0), 8)]))


def test_a_mixture_of_experts_reads_what_a_token_passes_through():
    mixture = model("Mixtral-8x7B")
    cost = decode_cost(mixture, 1, 100, weight_dtype="bfloat16", kv_dtype="bfloat16")
    seconds = RooflineClock(H100, mixture).seconds(Step([(job(99), 1)]))
    assert seconds == pytest.approx(step_seconds(H100, cost), rel=1e-12)


def test_moving_and_overhead_come_on_top():
    """1,000 tokens of 131,072 bytes at 10 GB/s: 13.1 ms. A step without work reads no weights."""
    clock = RooflineClock(H100, LLAMA, overhead_s=0.001, swap_gb_s=10)
    assert clock.seconds(Step(num_swapped=1000)) == pytest.approx(0.0131072 + 0.001, rel=1e-12)
    both = clock.seconds(Step([(job(99), 1)], num_swapped=1000))
    alone = RooflineClock(H100, LLAMA).seconds(Step([(job(99), 1)]))
    assert both == pytest.approx(alone + 0.0131072 + 0.001, rel=1e-12)
    assert RooflineClock(H100, LLAMA).seconds(Step(num_preempted=1)) == 0


def test_tokens_that_move_need_a_bandwidth():
    with pytest.raises(ValueError, match="the clock was given no swap_gb_s"):
        RooflineClock(H100, LLAMA).seconds(Step([(job(0), 1)], num_swapped=1))


@pytest.mark.parametrize(
    ("card", "shape", "options", "error", "message"),
    [
        (None, LLAMA, {}, TypeError, "needs a GPU and a model, got None"),
        (H100, "Llama-3-8B", {}, TypeError, "needs a GPU and a model"),
        (replace(H100, memory_bandwidth_gb_s=0), LLAMA, {}, ValueError, "memory bandwidth above 0"),
        (replace(H100, memory_bandwidth_gb_s=None), LLAMA, {}, ValueError, "got None"),
        (replace(H100, memory_bandwidth_gb_s=nan), LLAMA, {}, ValueError, "got nan"),
        (
            replace(H100, bf16_dense_tflops=None, fp16_dense_tflops=None),
            LLAMA,
            {},
            ValueError,
            "peak above 0, got None",
        ),
        (replace(H100, bf16_dense_tflops=-1), LLAMA, {}, ValueError, "peak above 0, got -1"),
        (H100, LLAMA, {"swap_gb_s": 0}, ValueError, "swap bandwidth above 0, got 0"),
        (H100, LLAMA, {"swap_gb_s": inf}, ValueError, "swap bandwidth above 0, got inf"),
        (H100, LLAMA, {"overhead_s": -1}, ValueError, "overhead_s must be at least 0"),
        (H100, LLAMA, {"overhead_s": inf}, ValueError, "overhead_s must be at least 0, got inf"),
        (H100, LLAMA, {"overhead_s": nan}, ValueError, "overhead_s must be at least 0"),
        (H100, LLAMA, {"kv_dtype": "fp9"}, ValueError, "fp9"),
        (H100, LLAMA, {"weight_dtype": "fp9"}, ValueError, "fp9"),
        (H100, model("Gemma-2-9B"), {}, ValueError, "windows or latent attention"),
        (H100, model("DeepSeek-V3"), {}, ValueError, "windows or latent attention"),
    ],
)
def test_what_the_clock_cannot_tell_is_refused_before_a_run(card, shape, options, error, message):
    with pytest.raises(error, match=message):
        RooflineClock(card, shape, **options)
