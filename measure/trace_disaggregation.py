"""Prefill and decode apart or together, and routers over 4 to 32 instances: trace_disaggregation.

Four H100 with Llama-3-8B serve a stretch of the Azure conversation trace and one of Mooncake's,
whose prompts are ten times as long, at several rates: the trace's own gaps, all shrunk by one
factor. Together, each card computes prompts in chunks beside its answers; apart, one to three of
the four compute prompts. Nothing is shared between prompts here. Times are those of two clocks: a
roofline, and one whose steps overlap nothing. Both reach the peaks of the data sheet, which no
kernel does: they bracket what overlap is worth, and predict no server.

The second part sends a stretch of Mooncake's trace to 4 to 32 instances with prefix caches, so many
requests and so fast that each instance is asked equally often.

A test recomputes a part; all of it takes about three minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.disaggregation import decode_instance, prefill_instance, serve_disaggregated
from kvlib.handover import Link
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.prefix_replay import replay_prefix
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.router import LeastLoaded, PrefixAffinity, RoundRobin, Router, TwoChoices
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serial_clock import SerialClock
from kvlib.serving import serve
from kvlib.serving_run import ServingRun, Target
from kvlib.show.drawings.routing import Tally
from whole_traces import load, record_figures

CARD, SHAPE, UTILIZATION, CARDS = gpu("H100 SXM5"), model("Llama-3-8B"), 0.9, 4
TOKEN_BYTES = SHAPE.kv.bytes_per_token("bfloat16")
FREE_BYTES = int(UTILIZATION * CARD.memory_bytes) - SHAPE.weight_bytes("bfloat16")
BLOCK_TOKENS, LINK_GB_S, CHUNKS, SPLITS = 16, 50, (512, 1024, 2048), (1, 2, 3)
CLOCKS = {"overlap": RooflineClock(CARD, SHAPE), "no overlap": SerialClock(CARD, SHAPE)}
# For each trace: requests, where the stretches begin, rates a second, and our target.
WORKLOADS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...], Target]] = {
    "azure-conv": (600, (0, 9000), (40, 60, 80, 110), Target(0.2, 0.012)),
    "mooncake-conv": (250, (3500, 9000), (2, 4, 6, 8), Target(5.0, 0.015)),
}
LINKS_GB_S = (1, 3, 12.5, 25, 50, 450)
TRACE_BLOCK, PER_INSTANCE, INSTANCES, EACH_PER_S = 512, 64, (4, 8, 16, 32), 0.425
ROUTERS: dict[str, Callable[[], Router]] = {
    "round robin": RoundRobin,
    "least loaded": LeastLoaded,
    "two choices": lambda: TwoChoices(seed=0),
    "prefix, cap 3": lambda: PrefixAffinity(3),
}
CODE = (
    "kvlib/disaggregation.py",
    "kvlib/two_pools.py",
    "kvlib/pulling.py",
    "kvlib/disaggregated_run.py",
    "kvlib/handover.py",
    "kvlib/handover_line.py",
    "kvlib/serial_clock.py",
    "kvlib/clock.py",
    "kvlib/router.py",
    "kvlib/serving.py",
    "kvlib/scheduler.py",
    "kvlib/running_batch.py",
    "kvlib/scheduled_step.py",
    "kvlib/kv_memory.py",
    "kvlib/prefix.py",
    "kvlib/hash_index.py",
    "kvlib/prefix_replay.py",
    "measure/trace_disaggregation.py",
)


def at_rate(requests: Sequence[Request], rate: float) -> list[Request]:
    """Returns requests whose gaps are shrunk so that so many come a second."""
    first, last = requests[0].arrival_s, requests[-1].arrival_s
    factor = (len(requests) - 1) / (last - first) / rate
    return [replace(r, arrival_s=(r.arrival_s - first) * factor) for r in requests]


def together(
    requests: Sequence[Request], chunk: int, clock: RooflineClock, target: Target
) -> ServingRun:
    """Serves on cards that do both, prompts in chunks; a request goes where the load is least."""
    blocks, limits = FREE_BYTES // (BLOCK_TOKENS * TOKEN_BYTES), StepLimits(max_tokens=chunk)
    cards = [Scheduler(KVMemory(blocks, BLOCK_TOKENS), limits=limits) for _ in range(CARDS)]
    return serve(requests, cards, clock, router=LeastLoaded(), target=target)


def apart(
    requests: Sequence[Request],
    num_prefill: int,
    clock: RooflineClock,
    target: Target,
    gb_s: float = LINK_GB_S,
) -> ServingRun:
    """Serves on cards of which so many compute prompts, and the others decode."""
    blocks = FREE_BYTES // (BLOCK_TOKENS * TOKEN_BYTES)
    return serve_disaggregated(
        requests,
        [prefill_instance(blocks, BLOCK_TOKENS) for _ in range(num_prefill)],
        [decode_instance(blocks, BLOCK_TOKENS) for _ in range(CARDS - num_prefill)],
        clock,
        Link(gb_s),
        TOKEN_BYTES,
        target=target,
    )


def row(run: ServingRun) -> dict[str, Any]:
    """The figures of one run."""
    found: dict[str, Any] = {"good_percent": round(100 * run.good / run.num_requests, 1)}
    for name, times in (("ttft", run.ttft_s), ("tpot", run.tpot_s)):
        for p in (50, 99):
            found[f"{name}_p{p}_s"] = float(f"{times.percentile(p):.3g}")
    found |= {"finished": run.finished, "preempted": run.preempted}
    if hasattr(run, "handover_s"):
        found["idle_percent"] = [round(100 * share, 1) for share in run.idle_shares]
        found["sent_gb"] = round(run.bytes_sent / 1e9, 1)
        found["handover_p50_s"] = float(f"{run.handover_s.percentile(50):.3g}")
        found["handover_p99_s"] = float(f"{run.handover_s.percentile(99):.3g}")
    return found


def ways(requests: Sequence[Request], clock: RooflineClock, target: Target) -> dict[str, Any]:
    """Serves requests in every way."""
    found = {f"chunks of {n}": row(together(requests, n, clock, target)) for n in CHUNKS}
    return found | {f"{p}:{CARDS - p}": row(apart(requests, p, clock, target)) for p in SPLITS}


def swept(name: str, clock: str, start: int, rates: Sequence[int]) -> dict[str, Any]:
    """Figures of one stretch with one clock; the keys say rates."""
    count, _, _, target = WORKLOADS[name]
    stretch = load(name).requests[start : start + count]
    return {
        f"{rate} a second": ways(at_rate(stretch, rate), CLOCKS[clock], target) for rate in rates
    }


def links(name: str, rate: int) -> dict[str, Any]:
    """Figures of the even split over links of several bandwidths."""
    count, starts, _, target = WORKLOADS[name]
    requests = at_rate(load(name).requests[starts[0] : starts[0] + count], rate)
    clock = CLOCKS["no overlap"]
    return {f"{gb_s} GB/s": row(apart(requests, 2, clock, target, gb_s)) for gb_s in LINKS_GB_S}


def routed(num_instances: int, start: int = 3500) -> dict[str, Any]:
    """Figures of each router over so many instances."""
    count, blocks = PER_INSTANCE * num_instances, FREE_BYTES // (TRACE_BLOCK * TOKEN_BYTES)
    requests = load("mooncake-conv").requests[start : start + count]
    whole = replay_prefix(requests, blocks * num_instances, block_size=TRACE_BLOCK)
    found: dict[str, Any] = {
        "requests": count,
        "one_cache": round(100 * whole.prefix_hit_rate, 2),
        "routers": {},
    }
    requests = at_rate(requests, EACH_PER_S * num_instances)
    for name, make in ROUTERS.items():
        tally = Tally(make(), [0] * num_instances)
        cards = [Scheduler(KVMemory(blocks, TRACE_BLOCK, HashIndex)) for _ in tally.sent]
        in_blocks = {id(r): content_of(r, TRACE_BLOCK) for r in requests}
        run = serve(
            requests,
            cards,
            CLOCKS["overlap"],
            content=lambda request, known=in_blocks: known[id(request)],
            router=tally,
        )
        found["routers"][name] = {
            "hit_percent": round(100 * run.prefix_hit_rate, 2),
            "busiest_to_mean": round(max(tally.sent) * num_instances / sum(tally.sent), 2),
            "never_chosen": tally.sent.count(0),
            "ttft_p50_s": float(f"{run.ttft_s.percentile(50):.3g}"),
            "ttft_p99_s": float(f"{run.ttft_s.percentile(99):.3g}"),
            "finished": run.finished,
        }
    return found


def setting() -> dict[str, Any]:
    """What was served, and on what."""
    return {
        "sources": {name: load(name).source for name in WORKLOADS},
        "card": CARD.name,
        "cards": CARDS,
        "model": SHAPE.name,
        "tokens_each": FREE_BYTES // (BLOCK_TOKENS * TOKEN_BYTES) * BLOCK_TOKENS,
        "token_bytes": TOKEN_BYTES,
        "link_gb_s": LINK_GB_S,
        "workloads": {
            name: {
                "requests": count,
                "starts": list(starts),
                "rates": list(rates),
                "ttft_s": target.ttft_s,
                "tpot_s": target.tpot_s,
            }
            for name, (count, starts, rates, target) in WORKLOADS.items()
        },
        "routing": {"per_instance": PER_INSTANCE, "each_per_s": EACH_PER_S},
    }


def figures() -> dict[str, Any]:
    """What a test recomputes."""
    return {
        **setting(),
        "links": links("azure-conv", WORKLOADS["azure-conv"][2][0]),
        "4 instances": routed(4),
    }


def all_figures() -> dict[str, Any]:
    """Everything the record holds."""
    found: dict[str, Any] = figures()
    for name, (_, starts, rates, _) in WORKLOADS.items():
        for clock in CLOCKS:
            for start in starts:
                key = f"{name} from {start}, {clock}"
                found[key] = swept(name, clock, start, rates)
    for num_instances in INSTANCES[1:]:
        found[f"{num_instances} instances"] = routed(num_instances)
    return found


if __name__ == "__main__":
    record_figures("trace_disaggregation", all_figures, tuple(WORKLOADS), CODE)
