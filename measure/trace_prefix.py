"""What prompts of two traces find in a prefix cache: python measure/trace_prefix.py.

Every hit rate is of prompt tokens: leading blocks found, the last one cut to the prompt's end.
"""

from __future__ import annotations

from typing import Any

from kvlib.belady import FarthestNextUse
from kvlib.hash_index import HashIndex
from kvlib.prefix_replay import replay_prefix
from kvlib.radix import RadixTree
from kvlib.retention import RankedFIFO, RankedLFU, RankedLRU, SLRUPolicy
from kvlib.workloads import Workload
from whole_traces import load, record_figures

NAMES = ("mooncake-conv", "mooncake-synthetic")
BLOCK_SIZE = 512
CAPACITIES = (200, 1_000, 3_000, 5_859, 10_000, 30_000, 50_000, 97_656, None)
# 3 and 10 million tokens: the published sizes.
POLICY_CAPACITIES = (5_859, 19_531)
POLICIES = {"LRU": RankedLRU, "FIFO": RankedFIFO, "LFU": RankedLFU, "SLRU": SLRUPolicy}
INDEXES = {"hash index": HashIndex, "radix tree": RadixTree}


def unique_blocks(workload: Workload) -> int:
    """Different blocks of all prompts: a cache of so many evicts nothing."""
    return len({block_id for request in workload for block_id in request.block_ids})


def rate(workload: Workload, capacity: int | None, **how: Any) -> float:
    """The hit rate, to four digits behind the point; no capacity is one without end."""
    blocks = capacity or unique_blocks(workload)
    return round(replay_prefix(workload.requests, blocks, **how).prefix_hit_rate, 4)


def told(workload: Workload, capacity: int | None) -> float:
    """The hit rate of giving up what is used farthest in the future."""
    return rate(workload, capacity, policy=FarthestNextUse(workload.requests))


def figures() -> dict[str, Any]:
    """What a test recomputes: two sizes of cache, and the totals."""
    whole = {name: load(name) for name in NAMES}
    warm = replay_prefix(whole["mooncake-conv"].requests, 5_859, warmup_fraction=0.5)
    return {
        "block_size": BLOCK_SIZE,
        "sources": {name: workload.source for name, workload in whole.items()},
        "requests": {name: len(workload) for name, workload in whole.items()},
        "unique_blocks": {name: unique_blocks(workload) for name, workload in whole.items()},
        "prompt_tokens": {
            name: sum(request.prompt_tokens for request in workload)
            for name, workload in whole.items()
        },
        "longest_prompt_blocks": {
            name: max(len(request.block_ids) for request in workload)
            for name, workload in whole.items()
        },
        "lru_at_5859": {name: rate(workload, 5_859) for name, workload in whole.items()},
        "told_at_1000": {name: told(workload, 1_000) for name, workload in whole.items()},
        "second_half_at_5859": [warm.hit_tokens, warm.prompt_tokens],
    }


def everything() -> dict[str, Any]:
    """All of the record; this takes minutes."""
    whole = {name: load(name) for name in NAMES}
    orders = {
        "LRU, tail first": lambda: {},
        "LRU, head first": lambda: {"order": "head-first"},
        "FIFO, tail first": lambda: {"policy": RankedFIFO()},
        "LFU, tail first": lambda: {"policy": RankedLFU()},
    }
    return {
        **figures(),
        "capacities": CAPACITIES,
        "hit_rate": {
            name: {
                **{
                    order: [rate(workload, capacity, **how()) for capacity in CAPACITIES]
                    for order, how in orders.items()
                },
                "farthest next use": [told(workload, capacity) for capacity in CAPACITIES],
            }
            for name, workload in whole.items()
        },
        "policy_capacities": POLICY_CAPACITIES,
        "policies": {
            name: {
                **{
                    policy: [rate(workload, n, policy=make()) for n in POLICY_CAPACITIES]
                    for policy, make in POLICIES.items()
                },
                "farthest next use": [told(workload, n) for n in POLICY_CAPACITIES],
            }
            for name, workload in whole.items()
        },
        "indexes": {
            name: {
                index: [rate(workload, n, index=make) for n in POLICY_CAPACITIES]
                for index, make in INDEXES.items()
            }
            for name, workload in whole.items()
        },
    }


if __name__ == "__main__":
    modules = (
        *("prefix_replay", "belady", "retention", "prefix", "hash_index", "content"),
        *("radix", "radix_nodes", "blocks"),
    )
    code = [*(f"kvlib/{name}.py" for name in modules), "measure/trace_prefix.py"]
    record_figures("trace_prefix", everything, NAMES, code)
