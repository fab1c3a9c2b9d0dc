"""How long do the tokens of a prompt take to compute, with and without cached ones before them?

Flat at first, while the weights are what a step waits for, then linear, and at last quadratic.
"""

from __future__ import annotations

from collections.abc import Callable

from kvlib.catalog import GPU, ModelShape
from kvlib.roofline import StepCost, attention_flops, step_seconds
from kvlib.sizes import whole_number

ComputeTime = Callable[[int, int], float]


class Prefill:
    """The least time of computing tokens whose predecessors are, or are not, cached.

    Args:
        gpu: with its bandwidth and peak.
        model: whose layers all attend to everything; not MLA.
        weight_dtype: what the weights are stored in.
        kv_dtype: what the cache stores.
        num_gpus: cards that share bytes and operations evenly, as if nothing were exchanged.
        efficiency: the share of the roofline that is reached, above 0 and at most 1.

    Attributes:
        token_bytes: bytes of one token's keys and values.
        num_layers: layers of the model.

    Raises:
        TypeError, ValueError: a size, a dtype or the efficiency is refused.

    Example:
        The last of 8,192 tokens waits for the weights and the cache, all of them for arithmetic:

        >>> from kvlib.catalog import gpu, model
        >>> prefill = Prefill(gpu("H100 SXM5"), model("Llama-3-8B"))
        >>> [round(1000 * prefill(new, 8192 - new), 1) for new in (1, 8192)]
        [5.1, 150.8]
    """

    def __init__(
        self,
        gpu: GPU,
        model: ModelShape,
        *,
        weight_dtype: str = "bfloat16",
        kv_dtype: str = "bfloat16",
        num_gpus: int = 1,
        efficiency: float = 1.0,
    ) -> None:
        whole_number("num_gpus", num_gpus)
        if not 0 < efficiency <= 1:
            raise ValueError(f"efficiency must be above 0 and at most 1, got {efficiency}")
        self._gpu, self._model, self._kv_dtype = gpu, model, kv_dtype
        self._speed = num_gpus * efficiency
        self._weight_bytes = model.weight_bytes(weight_dtype)
        self._pair_flops = attention_flops(model, 1)
        self.token_bytes = model.kv.bytes_per_token(kv_dtype)
        self.num_layers = model.kv.num_layers

    def __call__(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """Returns the seconds of one step with `new_tokens` behind `cached_tokens`."""
        whole_number("new_tokens", new_tokens)
        whole_number("cached_tokens", cached_tokens, least=0)
        total = cached_tokens + new_tokens
        pairs = total * (total + 1) // 2 - cached_tokens * (cached_tokens + 1) // 2
        active = self._model.active_params or self._model.params
        flops = new_tokens * 2 * active + pairs * self._pair_flops
        kv_bytes = self._model.kv_bytes(total, self._kv_dtype, beyond_context=True)
        return step_seconds(self._gpu, StepCost(self._weight_bytes, kv_bytes, flops)) / self._speed
