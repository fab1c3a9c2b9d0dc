"""KV-cache memory management: bookkeeping in plain Python, caches on real tensors.

`import kvlib` needs nothing but the standard library. It loads the core of the memory half; other
modules, the tensor half (`PagedKVCache` and its like) and the widgets load when first named.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kvlib.block_table import BlockTable
from kvlib.blocks import BlockPool
from kvlib.ledger import ContiguousLedger
from kvlib.metrics import Metrics
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.request import Request
from kvlib.sizes import KVShape
from kvlib.waste import Allocation

__version__ = "0.1.0"

# Names of the tensor half and of the face, and where they are.
_LAZY = {
    "show": "kvlib.show",
    "tensors": "kvlib.tensors",
    "AlignedKVCache": "kvlib.tensors.contiguous",
    "ContiguousKVCache": "kvlib.tensors.contiguous",
    "KVStore": "kvlib.tensors.store",
    "Llama": "kvlib.tensors.llama",
    "LlamaConfig": "kvlib.tensors.llama",
    "NoCache": "kvlib.tensors.step",
    "PagedKVCache": "kvlib.tensors.paged",
    "QuantizedKVCache": "kvlib.tensors.quantized",
    "RollingKVCache": "kvlib.tensors.sink_window",
    "Sampling": "kvlib.tensors.sampling",
    "card": "kvlib.tensors.device",
    "device": "kvlib.tensors.device",
    "generate": "kvlib.tensors.generate",
    "load_model": "kvlib.tensors.weights",
    "reference_attention": "kvlib.tensors.attention",
    "stream": "kvlib.tensors.generate",
}

__all__ = [
    "Allocation",
    "BlockPool",
    "BlockTable",
    "ContiguousLedger",
    "KVShape",
    "Metrics",
    "OutOfBlocks",
    "PagedLedger",
    "Request",
    "SequenceTooLong",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        if not name.startswith("_") and find_spec(f"kvlib.{name}"):
            return import_module(f"kvlib.{name}")
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
