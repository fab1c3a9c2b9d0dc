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
    "catalog",
    "clock",
    "contiguous_memory",
    "content",
    "conversations",
    "eviction",
    "exercises",
    "fair_line",
    "fcfs",
    "histogram",
    "judgement",
    "kv_memory",
    "ledger",
    "lognormal",
    "measured",
    "metrics",
    "paged_ledger",
    "paged_memory",
    "plan",
    "preemption",
    "prefix",
    "prefix_replay",
    "priority",
    "radix",
    "replay",
    "reservation",
    "retention",
    "rolling_ledger",
    "roofline",
    "router",
    "scheduler",
    "segments",
    "served",
    "serving",
    "serving_run",
    "simulate",
    "sizes",
    "slab",
    "slot_memory",
    "traces",
    "waiting",
    "waste",
    "workloads",
)
_LAZY = {
    "show": "kvlib.show",
    "tensors": "kvlib.tensors",
    "AlignedKVCache": "kvlib.tensors.caches",
    "ContiguousKVCache": "kvlib.tensors.caches",
    "PagedKVCache": "kvlib.tensors.paged",
    "RollingKVCache": "kvlib.tensors.rolling",
    "NoCache": "kvlib.tensors.step",
    "KVStore": "kvlib.tensors.store",
    "Llama": "kvlib.tensors.llama",
    "LlamaConfig": "kvlib.tensors.llama",
    "Sampling": "kvlib.tensors.sampling",
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
