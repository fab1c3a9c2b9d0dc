"""How fast a step can be at best: bytes against bandwidth, operations against peak.

A step is bound by whichever takes longer: moving its bytes or doing its operations. Their ratio,
the arithmetic intensity, says which before anything is run.

The weights are all parameters, the input embedding among them. Decode looks up one row of it for
each sequence. So where no output head shares it the weight bytes are an upper bound, and a step may
take a little less than the least time given (Llama-3-8B: 128,256 x 4,096 of 8.03 billion, 6.5 %).

Source: Williams, Waterman, Patterson 2009, Roofline.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvlib.catalog import GPU, ModelShape
from kvlib.sizes import whole_number


@dataclass(frozen=True)
class StepCost:
    """What one forward step of a model moves and computes.

    Attributes:
        weight_bytes: read once, however many sequences share the step; the input embedding counted.
        kv_bytes: read by attention, once for each sequence.
        flops: floating-point operations, a multiply-add counted as two.
    """

    weight_bytes: int
    kv_bytes: int
    flops: int

    @property
    def num_bytes(self) -> int:
        """All bytes read."""
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.num_bytes


def decode_cost(
    model: ModelShape, batch: int, context: int, *, weight_dtype: str, kv_dtype: str
) -> StepCost:
    """Returns what one decode step costs: one new token for each of `batch` sequences.

    Every active weight counts as read once and used for each sequence; each sequence reads its own
    keys and values. Activations are left out: they are small at one token a sequence. For a mixture
    of experts the weights read are those one token passes through, a lower bound for a batch.

    Args:
        model: a published model.
        batch: sequences in the step.
        context: tokens each has cached.
        weight_dtype: what the weights are stored in.
        kv_dtype: what the cache stores.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or no such dtype.

    Example:
        >>> from kvlib.catalog import model
        >>> step = decode_cost(model("Llama-3-8B"), 1, 8192, weight_dtype="bfloat16",
        ...                    kv_dtype="bfloat16")
        >>> step.weight_bytes, step.kv_bytes, round(step.intensity, 2)
        (16060000000, 1073741824, 1.19)
    """
    whole_number("batch", batch)
    active = model.active_params or model.params
    weight_bytes = model.weight_bytes(weight_dtype) * active // model.params
    kv_bytes = batch * model.kv_bytes(context, kv_dtype, beyond_context=True)
    return StepCost(weight_bytes, kv_bytes, batch * (2 * active + attention_flops(model, context)))


def prefill_cost(
    model: ModelShape, num_tokens: int, *, weight_dtype: str, kv_dtype: str
) -> StepCost:
    """Returns what prefilling one prompt costs: every weight once, and the cache it leaves.

    A prompt's tokens go to all experts of a mixture, so all weights are read. Activations are left
    out, as they are for decode.

    Args:
        model: a published model.
        num_tokens: length of the prompt.
        weight_dtype: what the weights are stored in.
        kv_dtype: what the cache stores.

    Raises:
        TypeError, ValueError: `num_tokens` is not a whole number of at least 1, or no such dtype.

    Example:
        >>> from kvlib.catalog import model
        >>> prompt = prefill_cost(model("Llama-3-8B"), 8192, weight_dtype="bfloat16",
        ...                       kv_dtype="bfloat16")
        >>> prompt.kv_bytes == 2**30, round(prompt.intensity)
        (True, 8706)
    """
    kv_bytes = model.kv_bytes(num_tokens, kv_dtype, beyond_context=True)
    return StepCost(model.weight_bytes(weight_dtype), kv_bytes, prefill_flops(model, num_tokens))


def prefill_flops(model: ModelShape, num_tokens: int) -> int:
    """Returns the operations of prefilling `num_tokens`: linear in weights, quadratic in attention.

    Two for each active parameter and token, as is usual. That is a little much: the embedding is
    only looked up, and the head is needed for the last token alone (with Llama-3-8B 13 % of the
    parameters).

    Example:
        >>> from kvlib.catalog import model
        >>> llama = model("Llama-3-8B")
        >>> prefill_flops(llama, 2) - 2 * 2 * llama.params == 3 * attention_flops(llama, 1)
        True
    """
    whole_number("num_tokens", num_tokens)
    active = model.active_params or model.params
    pairs = num_tokens * (num_tokens + 1) // 2
    return num_tokens * 2 * active + pairs * attention_flops(model, 1)


def attention_flops(model: ModelShape, context: int) -> int:
    """Returns the operations of one token's attention over `context` tokens, all layers.

    Scores and weighted sum each take a multiply-add for every query head, dimension and key. Layers
    with a window count at most the window.

    Raises:
        ValueError: an MLA model, whose attention this does not describe.
    """
    kv = model.kv
    if kv.head_dim is None:
        raise ValueError(f"{model.name} is MLA: its attention works on a latent, not on heads")
    seen = kv.num_full_layers * context + kv.num_local_layers * min(context, kv.window or context)
    return 4 * model.num_q_heads * kv.head_dim * seen


def attainable_tflops(gpu: GPU, intensity: float) -> float:
    """Returns the roof at an intensity: the lower of peak and bandwidth x intensity, in TFLOP/s.

    Example:
        Below the ridge, twice the intensity is twice the speed:

        >>> from kvlib.catalog import gpu
        >>> [round(attainable_tflops(gpu("H100 SXM5"), i), 1) for i in (1, 2, 1000)]
        [3.4, 6.7, 989.4]
    """
    peak = gpu.bf16_dense_tflops or gpu.fp16_dense_tflops
    return min(peak, gpu.memory_bandwidth_gb_s * intensity / 1000)


def step_seconds(gpu: GPU, cost: StepCost) -> float:
    """Returns the least time of a step: the longer of moving its bytes and doing its operations.

    Example:
        17.1 GB at 3,350 GB/s:

        >>> from kvlib.catalog import gpu, model
        >>> step = decode_cost(model("Llama-3-8B"), 1, 8192, weight_dtype="bfloat16",
        ...                    kv_dtype="bfloat16")
        >>> round(1000 * step_seconds(gpu("H100 SXM5"), step), 2)
        5.11
    """
    return cost.flops / (attainable_tflops(gpu, cost.intensity) * 1e12)
