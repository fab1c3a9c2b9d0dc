"""How many sequences fit: with an interval, since an engine's own needs are known within bounds.

Three plans of one memory, with all that is assumed at its worst, its likeliest and its best; and by
arithmetic how many requests of a workload such a memory holds at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt
from typing import Any, NamedTuple

from kvlib.catalog import GPU, ModelShape
from kvlib.memory_plan import CapacityPlan, DoesNotFit, plan_capacity
from kvlib.overheads import GIB, GRAPHS, LOGIT_COPIES, RUNTIME, activation_bytes, widths
from kvlib.request import Request


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
        >>> from kvlib.workloads import sample
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
