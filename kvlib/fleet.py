"""How many users are served in time: with an interval.

By serving a seeded workload, in memory that is known within bounds (`kvlib.plan_interval`), against
a roofline clock that is slowed by as much as is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, fsum, inf, sqrt
from typing import Any

from kvlib.catalog import GPU, ModelShape
from kvlib.clock import RooflineClock
from kvlib.kv_memory import KVMemory
from kvlib.memory_plan import CapacityPlan
from kvlib.overheads import Assumed
from kvlib.plan_interval import Interval
from kvlib.scheduled_step import Step, StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.serving_run import Target
from kvlib.workloads import sample

EFFICIENCY = Assumed(
    0.4,
    0.6,
    0.8,
    "a guess: the share of a roofline's speed that a whole engine reaches, communication included",
)


# A sample lasts so many times as long as a request that only just keeps its target.
SPANS = 4
LONGEST_SAMPLE = 20_000


def why_not_timed(model: ModelShape) -> str | None:
    """Returns why a model's users cannot be counted, None where they can.

    Example:
        >>> from kvlib.catalog import model
        >>> print(why_not_timed(model("DeepSeek-V3")))
        DeepSeek-V3 caches a latent: the clock counts the operations of whole heads
    """
    if model.kv.num_local_layers:
        return (
            f"{model.name} has {model.kv.num_local_layers} layers that keep a window only: memory "
            f"and clock count every cached token in every layer, and would promise too few users"
        )
    if model.kv.num_kv_heads is None:
        return f"{model.name} caches a latent: the clock counts the operations of whole heads"
    return None


class _Slower:
    """A clock that reaches only a share of another's speed."""

    def __init__(self, clock: RooflineClock, efficiency: float) -> None:
        self._clock, self._efficiency = clock, efficiency

    def seconds(self, step: Step) -> float:
        return self._clock.seconds(step) / self._efficiency


def rate_within(
    plan: CapacityPlan,
    model: ModelShape,
    gpu: GPU,
    target: Target,
    *,
    workload: str = "azure-conv",
    seed: int = 0,
    num_requests: int = 200,
    share: float = 0.95,
    efficiency: float = EFFICIENCY.likely,
    weight_dtype: str = "bfloat16",
    limits: StepLimits | None = None,
    guess: float = 1.0,
) -> float:
    """Returns the highest rate of requests, in 1/s, at which enough of them keep the target.

    By halving, to 1 part in 23: the workload is served again at each rate. Arrivals are Poisson.
    A sample begins in an empty engine and ends before an overload has grown, so it flatters. It
    lasts `SPANS` times `ttft_s + tpot_s * mean answer`; with that, the rates of Llama-3-8B on an
    A100 for chat are 9 to 15 % above those of samples three times as long and more.

    Args:
        plan: the memory.
        model: whose layers all attend to everything; see `RooflineClock`. Of a mixture of experts
            a step reads those of one token only, which flatters a batch.
        gpu: one card; `plan.num_gpus` of them count as one of so many times the speed.
        target: latency a request should keep.
        workload: a trace whose lengths are drawn.
        seed: of the sample.
        num_requests: in the sample, at least.
        share: of the requests that keep the target.
        efficiency: share of the roofline's speed.
        weight_dtype: what the weights are stored in; give what the plan was given.
        limits: of a step, likewise; by default 8,192 tokens and 256 requests, as `plan_capacity`.
        guess: a rate to begin at.

    Returns:
        0.0 where not even a request in 100 s is served in time.

    Raises:
        ValueError: a model that the clock does not know, a share that is not one, or a target so
            lax that more than `LONGEST_SAMPLE` requests could show whether it is kept.
    """
    if reason := why_not_timed(model):
        raise ValueError(reason)
    most_of = {"share": (share, 1), "efficiency": (efficiency, 1), "guess": (guess, 1e6)}
    for name, (value, most) in most_of.items():
        if not 0 < value <= most:
            raise ValueError(f"{name} must be above 0 and at most {most:g}, got {value}")
    drawn = sample(workload, 1000, seed).requests
    answer = fsum(request.output_tokens for request in drawn) / len(drawn)
    span_s = target.ttft_s + target.tpot_s * answer
    card = _as_one_card(gpu, plan.num_gpus)
    roofline = RooflineClock(card, model, weight_dtype=weight_dtype, kv_dtype=plan.kv_dtype)
    clock = _Slower(roofline, efficiency)

    def kept(rate: float) -> bool:
        number = max(num_requests, ceil(SPANS * rate * span_s))
        if number > LONGEST_SAMPLE:
            raise ValueError(
                f"at {rate:.3g} requests a second and {span_s:,.0f} s for a request in time, it "
                f"takes {number:,} requests to tell, {LONGEST_SAMPLE:,} at most: tighten the target"
            )
        requests = sample(workload, number, seed, rate=rate).requests
        scheduler = Scheduler(KVMemory(plan.num_blocks, plan.block_size), limits=limits)
        return serve(requests, scheduler, clock, target=target).good >= share * number

    return _highest(kept, guess)


def _as_one_card(gpu: GPU, num_gpus: int) -> GPU:
    return replace(
        gpu,
        memory_bandwidth_gb_s=gpu.memory_bandwidth_gb_s * num_gpus,
        fp16_dense_tflops=gpu.fp16_dense_tflops * num_gpus,
        bf16_dense_tflops=gpu.bf16_dense_tflops and gpu.bf16_dense_tflops * num_gpus,
    )


def _highest(kept: Callable[[float], bool], guess: float) -> float:
    """Returns a rate that is kept and at most a part in 23 below one that is not."""
    low = high = guess
    while not kept(low):
        low, high = low / sqrt(2), low
        if low < 0.01:
            return 0.0
    while low == high or kept(high):
        low, high = high, high * sqrt(2)
    for _ in range(3):
        middle = sqrt(low * high)
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def users(
    plans: dict[str, CapacityPlan | None],
    model: ModelShape,
    gpu: GPU,
    target: Target,
    *,
    every_s: float = 60.0,
    seeds: Sequence[int] = (0, 1, 2),
    efficiency: Assumed = EFFICIENCY,
    **arguments: Any,
) -> Interval:
    """Returns how many users are served in time, if each sends a request now and then.

    The interval covers what is assumed (memory and speed, both at their worst and both at their
    best) and what is chance (the lowest and the highest over the seeds). It covers neither an
    engine outside `efficiency` nor lengths other than the workload's. It is no confidence interval:
    nobody knows how likely its ends are.

    Args:
        plans: of `kvlib.plan_interval.plan_range`.
        model: as `rate_within`, whose `arguments` are passed on.
        gpu: likewise.
        target: likewise.
        every_s: seconds from one request of a user to the next, on average.
        seeds: one sample each.
        efficiency: share of the roofline's speed, three values.
        arguments: `workload`, `num_requests`, `share`, `weight_dtype`, `limits`.

    Returns:
        0 at an end whose plan holds nothing.

    Raises:
        ValueError: as `rate_within`; no seed, or `every_s` is no time.
    """
    if reason := why_not_timed(model):
        raise ValueError(reason)
    if not seeds or not 0 < every_s < inf:
        raise ValueError(f"needs a seed and every_s above 0, got {list(seeds)} and {every_s}")
    rates = {"low": [0.0], "likely": [0.0], "high": [0.0]}
    for name in ("likely", "low", "high"):
        plan, reached = plans[name], getattr(efficiency, name)
        guess = (max(rates["likely"]) or 1.0) * reached / efficiency.likely
        if plan is None:
            continue
        rates[name] = [
            rate_within(
                plan, model, gpu, target, seed=seed, efficiency=reached, guess=guess, **arguments
            )
            for seed in seeds
        ]
    middle = sorted(rates["likely"])[len(rates["likely"]) // 2]
    return Interval(*(every_s * r for r in (min(rates["low"]), middle, max(rates["high"]))))
