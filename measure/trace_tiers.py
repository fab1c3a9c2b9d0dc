"""What a stack of tiers finds of the Mooncake conversation trace: trace_tiers.cpu.

One machine with a card for Llama-3-8B, host memory and a disk of several sizes; the requests come
one after another. Counted are tokens found in each tier and bytes written to each; times to the
first token are a roofline's, without a queue, each prompt alone: what is found is read at the speed
of the tier it lies in, if that is faster than computing it, and the rest is computed.

A test recomputes part of it; all of it takes about a minute.
"""

from __future__ import annotations

from collections import Counter
from math import fsum
from typing import Any

from kvlib.catalog import gpu, model
from kvlib.prefill_time import Prefill
from kvlib.request import Request
from kvlib.tier import Tier
from kvlib.tier_replay import TierReplay, replay_tiers
from kvlib.tiers import TierStack
from whole_traces import load, record_figures

NAME, BLOCK_TOKENS, WARMUP = "mooncake-conv", 512, 0.25
CARD, SHAPE, UTILIZATION = "H100 SXM5", "Llama-3-8B", 0.9
# Assumed: what 16 lanes of PCIe 5 and a fast disk may give.
HOST_GB_S, DISK_GB_S = 50.0, 6.0
GB = 10**9
STACKS: dict[str, tuple[int, int, str]] = {  # host, disk in GB; policy
    "card alone": (0, 0, "write_through"),
    "host 32 GB": (32, 0, "write_through"),
    "host 100 GB": (100, 0, "write_through"),
    "host 256 GB": (256, 0, "write_through"),
    "host 1,024 GB": (1024, 0, "write_through"),
    "host 256 GB, disk 2,000 GB": (256, 2000, "write_through"),
    "the same, written back": (256, 2000, "write_back"),
    "the same, from the second use": (256, 2000, "selective"),
}
FIRST = ("host 100 GB", "the same, from the second use")
CODE = (
    "kvlib/tier.py",
    "kvlib/tiers.py",
    "kvlib/prefill_time.py",
    "kvlib/tier_replay.py",
    "kvlib/eviction.py",
    "measure/trace_tiers.py",
)


def prefill() -> Prefill:
    """The card's time for a prompt."""
    return Prefill(gpu(CARD), model(SHAPE))


def tiers(host_gb: int, disk_gb: int) -> list[Tier]:
    """The card's free memory, and what lies below it."""
    card, shape = gpu(CARD), model(SHAPE)
    free = int(UTILIZATION * card.memory_bytes) - shape.weight_bytes("bfloat16")
    found = [Tier("card", free, card.memory_bandwidth_gb_s)]
    if host_gb:
        found.append(Tier("host", host_gb * GB, HOST_GB_S, latency_s=1e-5))
    if disk_gb:
        found.append(Tier("disk", disk_gb * GB, DISK_GB_S, latency_s=1e-4))
    return found


def first_token_s(run: TierReplay, held: TierStack, clock: Prefill) -> tuple[float, float]:
    """Returns the mean seconds with all that is found, and with what is faster read than computed.

    What lies in the card is there already. Of the rest the leading tiers are read, and in the
    second figure only as many as leave the shortest time.
    """
    always, faster = [], []
    for prompt, found in zip(run.prompts, run.found, strict=True):
        cached, read, times = 0, 0.0, []
        for tier, tokens in zip(held.tiers, found, strict=True):
            if tokens and tier is not held.tiers[0]:
                read += tier.read_s(tokens * clock.token_bytes)
            cached = min(cached + tokens, prompt - 1)  # the last token is always computed
            times.append(read + clock(prompt - cached, cached))
        always.append(times[-1])
        faster.append(min(times))
    return fsum(always) / len(always), fsum(faster) / len(faster)


def one_stack(requests: tuple[Request, ...], name: str) -> dict[str, Any]:
    """Figures of one stack after its warm-up."""
    host_gb, disk_gb, policy = STACKS[name]
    clock = prefill()
    held = TierStack(tiers(host_gb, disk_gb), BLOCK_TOKENS * clock.token_bytes, policy=policy)
    run = replay_tiers(requests, held, block_size=BLOCK_TOKENS, warmup_fraction=WARMUP)
    always, faster = first_token_s(run, held, clock)
    return {
        "tiers": [tier.name for tier in held.tiers],
        "blocks": list(held.capacity_blocks),
        "hit_percent": [round(100 * share, 2) for share in run.hit_rates],
        "written_gb": [round(n / GB, 1) for n in run.bytes_written],
        "read_gb": [round(n / GB, 1) for n in run.bytes_read],
        "first_token_s": float(f"{always:.4g}"),
        "first_token_if_faster_s": float(f"{faster:.4g}"),
    }


def figures(names: tuple[str, ...] = FIRST) -> dict[str, Any]:
    """What a test recomputes; with other names, more of the record."""
    requests = load(NAME).requests
    counted = requests[int(WARMUP * len(requests)) :]
    nothing = fsum(map(prefill(), (request.prompt_tokens for request in counted))) / len(counted)
    uses = Counter(block for request in requests for block in request.block_ids)
    return {
        "sources": {NAME: load(NAME).source},
        "distinct_blocks": len(uses),
        "seen_once": sum(times == 1 for times in uses.values()),
        "requests": len(counted),
        "warmup_requests": len(requests) - len(counted),
        "counted_s": round(counted[-1].arrival_s - counted[0].arrival_s),
        "card": CARD,
        "model": SHAPE,
        "gb_s": [HOST_GB_S, DISK_GB_S],
        "no_cache_s": float(f"{nothing:.4g}"),
        **{f"stack {name}": one_stack(requests, name) for name in names},
    }


def all_figures() -> dict[str, Any]:
    """Everything the record holds of the trace."""
    return figures(tuple(STACKS))


if __name__ == "__main__":
    record_figures("trace_tiers", all_figures, (NAME,), CODE)
