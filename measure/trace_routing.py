"""Routes four stretches of the Mooncake conversation trace to eight instances: trace_routing.cpu.

Each instance has the keys and values of Llama-3-8B in what an H100 leaves beside the weights, and a
prefix index over the trace's own blocks of 512 tokens; every stretch begins with empty caches.
Beside them stands what one cache with the memory of all eight finds, least recently used leaving
first, if the requests come one after another. Times are a roofline's.

A test recomputes the first stretch; all four take about two minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.prefix_replay import replay_prefix
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.router import LeastLoaded, PrefixAffinity, RoundRobin, Router, TwoChoices
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.show.drawings.routing import Tally
from whole_traces import load, record_figures

NAME, BLOCK_TOKENS, REQUESTS, INSTANCES = "mooncake-conv", 512, 1500, 8
FIRST, *OTHERS = 0, 3500, 7000, 10_500
CARD, SHAPE, UTILIZATION = "H100 SXM5", "Llama-3-8B", 0.9
ROUTERS: dict[str, Callable[[], Router]] = {
    "round robin": RoundRobin,
    "least loaded": LeastLoaded,
    "two choices": lambda: TwoChoices(seed=0),
    "prefix, no cap": lambda: PrefixAffinity(inf),
    "prefix, cap 1.5": lambda: PrefixAffinity(1.5),
    "prefix, cap 3": lambda: PrefixAffinity(3),
}
CODE = (
    "kvlib/router.py",
    "kvlib/serving.py",
    "kvlib/scheduler.py",
    "kvlib/running_batch.py",
    "kvlib/scheduled_step.py",
    "kvlib/kv_memory.py",
    "kvlib/prefix.py",
    "kvlib/hash_index.py",
    "kvlib/prefix_replay.py",
    "measure/trace_routing.py",
)


def instance() -> Scheduler:
    """One card's scheduler."""
    card, shape = gpu(CARD), model(SHAPE)
    free = int(UTILIZATION * card.memory_bytes) - shape.weight_bytes("bfloat16")
    num_blocks = free // (BLOCK_TOKENS * shape.kv.bytes_per_token("bfloat16"))
    return Scheduler(KVMemory(num_blocks, BLOCK_TOKENS, HashIndex))


def routed(requests: Sequence[Request], name: str) -> dict[str, float]:
    """Serves requests with one of the routers."""
    tally = Tally(ROUTERS[name](), [0] * INSTANCES)
    run = serve(
        requests,
        [instance() for _ in range(INSTANCES)],
        RooflineClock(gpu(CARD), model(SHAPE)),
        content=lambda request: content_of(request, BLOCK_TOKENS),
        router=tally,
    )
    return {
        "hit_percent": round(100 * run.prefix_hit_rate, 2),
        "ttft_p50_s": float(f"{run.ttft_s.percentile(50):.3g}"),
        "ttft_p99_s": float(f"{run.ttft_s.percentile(99):.3g}"),
        "busiest_to_mean": round(max(tally.sent) * INSTANCES / sum(tally.sent), 2),
        "never_chosen": tally.sent.count(0),
        "finished": run.finished,
        "refused": run.refused,
        "preempted": run.preempted,
    }


def stretch(start: int) -> dict[str, Any]:
    """Figures of the requests from `start` on; the key says so."""
    requests = load(NAME).requests[start : start + REQUESTS]
    num_blocks = INSTANCES * instance().memory.size // BLOCK_TOKENS
    whole = replay_prefix(requests, num_blocks, block_size=BLOCK_TOKENS)
    first = requests[0].arrival_s
    first_blocks = Counter(request.block_ids[0] for request in requests)
    figures = {
        "commonest_first_block": round(first_blocks.most_common(1)[0][1] / len(requests), 4),
        "first_tick": sum(request.arrival_s == first for request in requests),
        "one_cache": round(100 * whole.hit_tokens / whole.prompt_tokens, 2),
        "routers": {name: routed(requests, name) for name in ROUTERS},
    }
    return {f"from request {start}": figures}


def figures() -> dict[str, Any]:
    """What a test recomputes: the first stretch."""
    return {
        "sources": {NAME: load(NAME).source},
        "requests": REQUESTS,
        "instances": INSTANCES,
        "tokens_each": instance().memory.size,
        "card": CARD,
        "model": SHAPE,
        **stretch(FIRST),
    }


def all_figures() -> dict[str, Any]:
    """Everything the record holds of the trace."""
    found = figures()
    for start in OTHERS:
        found |= stretch(start)
    return found


if __name__ == "__main__":
    record_figures("trace_routing", all_figures, (NAME,), CODE)
