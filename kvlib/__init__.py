"""KV-cache memory management: bookkeeping in plain Python, caches on real tensors.

`import kvlib` loads the memory half only, which needs nothing but the standard library. The tensor
half (`PagedKVCache` and its like) and the widgets load when you first name them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvlib import (
    allocator,
    arena,
    block_table,
    blocks,
    buddy,
    catalog,
    conversations,
    eviction,
    exercises,
    fcfs,
    judgement,
    ledger,
    lognormal,
    measured,
    metrics,
    paged_ledger,
    paged_memory,
    plan,
    replay,
    reservation,
    rolling_ledger,
    roofline,
    segments,
    simulate,
    sizes,
    slab,
    traces,
    waste,
    workloads,
)
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
    "allocator",
    "arena",
    "block_table",
    "blocks",
    "buddy",
    "catalog",
    "conversations",
    "eviction",
    "exercises",
    "fcfs",
    "judgement",
    "ledger",
    "lognormal",
    "measured",
    "metrics",
    "paged_ledger",
    "paged_memory",
    "plan",
    "replay",
    "reservation",
    "rolling_ledger",
    "roofline",
    "segments",
    "simulate",
    "sizes",
    "slab",
    "traces",
    "waste",
    "workloads",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
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
