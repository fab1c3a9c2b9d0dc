"""How many sequences fit and how many users are served in time: each with an interval.

Memory three times (`plan_range`), because what an engine takes beside the cache is known only
within bounds; then time, by serving a seeded workload in that memory against a roofline clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, fsum, inf, sqrt
from typing import Any, NamedTuple

from kvlib.catalog import GPU, ModelShape
from kvlib.clock import RooflineClock
from kvlib.kv_memory import KVMemory
from kvlib.memory_plan import CapacityPlan, DoesNotFit, plan_capacity
from kvlib.overheads import GIB, GRAPHS, LOGIT_COPIES, RUNTIME, Assumed, activation_bytes, widths
from kvlib.request import Request
from kvlib.scheduler import Scheduler, Step, StepLimits
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


class Interval(NamedTuple):
    """A number that is known within bounds; who returns one says what its ends cover."""

    low: float
    likely: float
    high: float


def plan_range(model: ModelShape, gpu: GPU, **arguments: Any) -> dict[str, CapacityPlan | None]:
    """Returns three plans: with all that is assumed at its worst, its likeliest and its best.

    Args:
        model: as `plan_capacity`.
        gpu: likewise.
        arguments: the others of `plan_capacity`; an overhead that is given is no longer assumed.

    Returns:
        "low", "likely" and "high", by the size of the cache; None where nothing fits. Between low
        and high lies what the logs named in `kvlib.overheads` show, not all that there can be.

    Raises:
        TypeError, ValueError: as `plan_capacity`, but for what does not fit.

    Example:
        >>> from kvlib.catalog import gpu, model
        >>> plans = plan_range(model("Llama-3-8B"), gpu("H100 SXM5"))
        >>> [plan.num_tokens // 1000 for plan in plans.values()]
        [410, 460, 464]
    """
    mlp_width, vocab_size = widths(model)
    largest = {
        name: arguments.get(name, default)
        for name, default in (("max_batched_tokens", 8192), ("max_num_seqs", 256), ("num_gpus", 1))
    }
    plans: dict[str, CapacityPlan | None] = {}
    for name, field in (("low", "high"), ("likely", "likely"), ("high", "low")):
        assumed = {
            "graphs": int(getattr(GRAPHS, field) * GIB),
            "runtime": int(getattr(RUNTIME, field) * GIB),
            "activations": activation_bytes(
                model.hidden_size,
                mlp_width,
                vocab_size,
                logit_copies=getattr(LOGIT_COPIES, field),
                **largest,
            ),
        }
        try:
            plans[name] = plan_capacity(model, gpu, **assumed | arguments)
        except DoesNotFit:
            plans[name] = None
    return plans


def at_once(plan: CapacityPlan, requests: Sequence[Request], z: float = 1.645) -> Interval:
    """Returns how many requests of a workload the memory holds at the same time, by arithmetic.

    A request that runs holds its prompt and, on average over its time, half its answer; one with a
    long answer is met more often. `N` of them hold `N * mean` tokens, give or take `z` deviations
    of a sum. The interval covers the chance of the lengths, and nothing of what the plan assumes.
    Its low end counts whole answers: with `z` = 1.645, so many requests fit to their end in 19 of
    20 draws. Its high end is met in 1 of 20, by requests that happen to be short.

    Args:
        plan: whose layers all keep every token.
        requests: their lengths; prompt and answer.
        z: deviations on either side.

    Raises:
        ValueError: no request, or layers that keep a window only.

    Example:
        >>> from kvlib.catalog import gpu, model
        >>> plan = plan_capacity(model("Llama-3-8B"), gpu("A10"), max_batched_tokens=2048)
        >>> [round(n) for n in at_once(plan, sample("azure-conv", 1000, 0).requests)]
        [17, 25, 33]
    """
    if not requests:
        raise ValueError("a workload has at least one request")
    if plan.kv.num_local_layers:
        raise ValueError(
            f"{plan.kv.num_local_layers} of {plan.kv.num_layers} layers keep a window only: a "
            f"request's tokens take no fixed number of bytes, see CapacityPlan.concurrency"
        )
    slack = (plan.block_size - 1) / 2
    weights = [request.output_tokens for request in requests]
    whole = [each.prompt_tokens + each.output_tokens + slack for each in requests]
    held = [each.prompt_tokens + each.output_tokens / 2 + slack for each in requests]
    return Interval(
        _how_many(plan.num_tokens, *_moments(whole, weights), z),
        _how_many(plan.num_tokens, *_moments(held, weights), 0),
        _how_many(plan.num_tokens, *_moments(held, weights), -z),
    )


def _moments(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    total = fsum(weights)
    mean = fsum(v * w for v, w in zip(values, weights, strict=True)) / total
    squares = fsum((v - mean) ** 2 * w for v, w in zip(values, weights, strict=True))
    return mean, sqrt(squares / total)


def _how_many(tokens: int, mean: float, deviation: float, z: float) -> float:
    # N * mean + z * deviation * sqrt(N) = tokens, solved for sqrt(N).
    half = z * deviation / (2 * mean)
    return (sqrt(half * half + tokens / mean) - half) ** 2


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
    for name, value, most in (
        ("share", share, 1),
        ("efficiency", efficiency, 1),
        ("guess", guess, 1e6),
    ):
        if not 0 < value <= most:
            raise ValueError(f"{name} must be above 0 and at most {most:g}, got {value}")
    drawn = sample(workload, 1000, seed).requests
    answer = fsum(request.output_tokens for request in drawn) / len(drawn)
    span_s = target.ttft_s + target.tpot_s * answer
    speed = replace(
        gpu,
        memory_bandwidth_gb_s=gpu.memory_bandwidth_gb_s * plan.num_gpus,
        fp16_dense_tflops=gpu.fp16_dense_tflops * plan.num_gpus,
        bf16_dense_tflops=gpu.bf16_dense_tflops and gpu.bf16_dense_tflops * plan.num_gpus,
    )
    roofline = RooflineClock(speed, model, weight_dtype=weight_dtype, kv_dtype=plan.kv_dtype)
    clock = _Slower(roofline, efficiency)

    def kept(rate: float) -> bool:
        number = max(num_requests, ceil(SPANS * rate * span_s))
        if number > LONGEST_SAMPLE:
            raise ValueError(
                f"at {rate:.3g} requests a second and {span_s:,.0f} s for a request in time, it "
                f"takes {number:,} requests to tell, {LONGEST_SAMPLE:,} at most: tighten the target"
            )
        requests = sample(workload, number, seed, rate=rate).requests
        memory = KVMemory(plan.num_blocks, plan.block_size)
        run = serve(requests, Scheduler(memory, limits=limits), clock, target=target)
        return run.good >= share * number

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
        plans: of `plan_range`.
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
