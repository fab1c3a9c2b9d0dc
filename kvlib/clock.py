"""How long a step takes at least, from its bytes and operations: a clock for a simulator.

It is the roofline's time: nothing overlaps badly, no kernel is slow, no host waits. It orders
memory policies by what they make a step read and compute. It predicts no server's latency.
"""

from __future__ import annotations

from math import isfinite
from typing import Protocol

from kvlib.catalog import GPU, ModelShape
from kvlib.roofline import StepCost, attention_flops, step_seconds
from kvlib.scheduled_step import Step


class Clock(Protocol):
    """Says how long steps take."""

    def seconds(self, step: Step) -> float:
        """Returns the time of a step that was scheduled and not yet reported back."""


class RooflineClock:
    """The least time of each step on one GPU.

    Weights are read once a step, cached keys and values once for each request; every token passes
    all weights, and is scored against the keys before it.

    Args:
        gpu: with its bandwidth and peak.
        model: whose layers all attend to everything; not MLA.
        weight_dtype: what the weights are stored in.
        kv_dtype: what the cache stores.
        overhead_s: added to every step, for what a roofline leaves out.
        swap_gb_s: bandwidth between device and host, in GB/s; swapping is refused without it.

    Raises:
        TypeError, ValueError: no GPU or model, no such dtype, a model with windows or latent
            attention, a bandwidth that is not positive, or a negative overhead.

    Example:
        One token of a sequence of 8,192: the time is that of `decode_cost`.

        >>> from kvlib.catalog import gpu, model
        >>> from kvlib.request import Request
        >>> from kvlib.served import ServedRequest
        >>> clock = RooflineClock(gpu("H100 SXM5"), model("Llama-3-8B"))
        >>> job = ServedRequest(Request(0, None, 8191, 9), 0, 0.0, 8200, 8200, num_tokens=8192,
        ...                     num_computed=8191)
        >>> round(1000 * clock.seconds(Step([(job, 1)])), 2)
        5.11
    """

    def __init__(
        self,
        gpu: GPU,
        model: ModelShape,
        *,
        weight_dtype: str = "bfloat16",
        kv_dtype: str = "bfloat16",
        overhead_s: float = 0.0,
        swap_gb_s: float | None = None,
    ) -> None:
        if not isinstance(gpu, GPU) or not isinstance(model, ModelShape):
            raise TypeError(f"a clock needs a GPU and a model, got {gpu!r} and {model!r}")
        if model.kv.head_dim is None or model.kv.num_local_layers:
            raise ValueError(f"{model.name} has windows or latent attention: not for this clock")
        speeds = {"memory bandwidth": gpu.memory_bandwidth_gb_s}
        speeds["peak"] = gpu.bf16_dense_tflops or gpu.fp16_dense_tflops
        if swap_gb_s is not None:
            speeds["swap bandwidth"] = swap_gb_s
        for name, speed in speeds.items():
            if speed is None or not (isfinite(speed) and speed > 0):
                raise ValueError(f"a clock needs a {name} above 0, got {speed!r}")
        if not (isfinite(overhead_s) and overhead_s >= 0):
            raise ValueError(f"overhead_s must be at least 0, got {overhead_s!r}")
        self._gpu, self._overhead_s, self._swap_gb_s = gpu, overhead_s, swap_gb_s
        active = model.active_params or model.params
        self._weight_bytes = model.weight_bytes(weight_dtype) * active // model.params
        self._token_bytes = model.kv.bytes_per_token(kv_dtype)
        self._token_flops, self._pair_flops = 2 * active, attention_flops(model, 1)

    def seconds(self, step: Step) -> float:
        """Returns the time of a step.

        Raises:
            ValueError: tokens move to or from the host, and no bandwidth was given for it.
        """
        keys, pairs = step.attention()
        flops = step.num_tokens * self._token_flops + pairs * self._pair_flops
        cost = StepCost(self._weight_bytes, keys * self._token_bytes, flops)
        moving = 0.0
        if step.num_swapped:
            if self._swap_gb_s is None:
                raise ValueError("tokens were swapped, and the clock was given no swap_gb_s")
            moving = step.num_swapped * self._token_bytes / (self._swap_gb_s * 1e9)
        # Where nothing is computed no weights are read either.
        least = step_seconds(self._gpu, cost) if step.work else 0.0
        return least + moving + self._overhead_s
