"""KV-cache memory management: bookkeeping in plain Python, caches on real tensors.

`import kvlib` needs nothing but the standard library. It loads the core of the memory half; other
modules, the tensor half (`PagedKVCache` and its like) and the widgets load when first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvlib.block_table import BlockTable
from kvlib.blocks import BlockPool
from kvlib.catalog import GPU, ModelShape
from kvlib.ledger import ContiguousLedger
from kvlib.metrics import Metrics, WorkCounters
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import BlockCopy, OutOfBlocks, SequenceTooLong, StepPlan
from kvlib.request import Request, Workload
from kvlib.sizes import KVShape
from kvlib.waste import Allocation, MemorySplit

__version__ = "0.1.0"

# Modules of the memory half, loaded when they are first named.
_MODULES = (
    "admission",
    "allocator",
    "arena",
    "atlas",
    "block_table",
    "blocks",
    "buddy",
    "budget_ledger",
    "capacity",
    "capstone",
    "catalog",
    "clock",
    "content",
    "contiguous_memory",
    "conversations",
    "disaggregated_run",
    "disaggregation",
    "engine_desk",
    "engine_logs",
    "engine_request",
    "eviction",
    "exercises",
    "fair_line",
    "fcfs",
    "field_guide",
    "fleet",
    "handover",
    "histogram",
    "judgement",
    "kv_memory",
    "ledger",
    "load_run",
    "load_test",
    "log_timeline",
    "lognormal",
    "measured",
    "memory_plan",
    "metrics",
    "overheads",
    "paged_ledger",
    "paged_memory",
    "percentiles",
    "plan",
    "precision",
    "preemption",
    "prefix",
    "prefix_replay",
    "priority",
    "prompts",
    "pulling",
    "radix",
    "replay",
    "request_cost",
    "reservation",
    "retention",
    "rolling_ledger",
    "roofline",
    "router",
    "scheduled_ledger",
    "scheduled_memory",
    "scheduler",
    "segments",
    "serial_clock",
    "served",
    "serving",
    "serving_run",
    "sharded_ledger",
    "sharding",
    "simulate",
    "simulated_server",
    "sizes",
    "slab",
    "slot_memory",
    "step_parts",
    "tier_replay",
    "tiers",
    "token_budget",
    "traces",
    "transfer",
    "tuning",
    "two_pools",
    "waiting",
    "waste",
    "workloads",
)
_LAZY = {
    "show": "kvlib.show",
    "tensors": "kvlib.tensors",
    "AlignedKVCache": "kvlib.tensors.caches",
    "BlockFiles": "kvlib.tensors.block_files",
    "PeerLost": "kvlib.tensors.distributed",
    "RemoteBlocks": "kvlib.tensors.remote_blocks",
    "BlockServer": "kvlib.tensors.block_server",
    "ContiguousKVCache": "kvlib.tensors.caches",
    "Engine": "kvlib.tensors.engine",
    "HeadShardedKVCache": "kvlib.tensors.head_sharded",
    "HeavyHitterKVCache": "kvlib.tensors.heavy_hitters",
    "KVStore": "kvlib.tensors.store",
    "Llama": "kvlib.tensors.llama",
    "LlamaConfig": "kvlib.tensors.llama",
    "NoCache": "kvlib.tensors.step",
    "PagedKVCache": "kvlib.tensors.paged",
    "QuantizedKVCache": "kvlib.tensors.quantized",
    "RollingKVCache": "kvlib.tensors.sink_window",
    "Sampling": "kvlib.tensors.sampling",
    "SequenceShardedKVCache": "kvlib.tensors.sequence_sharded",
    "SinkWindowKVCache": "kvlib.tensors.sink_window",
    "SnapKVCache": "kvlib.tensors.snap",
    "TieredKVCache": "kvlib.tensors.tiered",
    "TopBlocksKVCache": "kvlib.tensors.top_blocks",
    "card": "kvlib.tensors.device",
    "device": "kvlib.tensors.device",
    "generate": "kvlib.tensors.generate",
    "load_model": "kvlib.tensors.weights",
    "reference_attention": "kvlib.tensors.attention",
    "stream": "kvlib.tensors.generate",
}

__all__ = [
    "GPU",
    "Allocation",
    "BlockCopy",
    "BlockPool",
    "BlockTable",
    "ContiguousLedger",
    "KVShape",
    "MemorySplit",
    "Metrics",
    "ModelShape",
    "OutOfBlocks",
    "PagedLedger",
    "Request",
    "SequenceTooLong",
    "StepPlan",
    "WorkCounters",
    "Workload",
    *_MODULES,
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"kvlib.{name}")
    if name not in _LAZY:
        raise AttributeError(f"kvlib has no {name!r}; it has {', '.join(sorted(__all__))}")
    try:
        module = import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "kvlib":
            raise
        raise ImportError(
            f"kvlib.{name} needs {error.name}: pip install 'kvlib[torch]' "
            "(or, in this repository, pip install -r requirements.txt)"
        ) from error
    return module if module.__name__ == f"kvlib.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
