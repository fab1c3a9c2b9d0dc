"""Tensors that are not in a processor's cache when a measurement begins.

A real step finds its keys in memory: the weights of all layers were read since they were last used.
Reading some other large set does not bring that about where the cache is large and prefers to keep
what was used more than once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kvlib.tensors.kernels.build import library

SOURCE = Path(__file__).with_suffix(".cpp")
READ_BYTES = 2**29


def putting_out(*tensors: Tensor, after: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """Returns a call after which none of the tensors' bytes is in a cache.

    On CUDA half a gigabyte is read instead, which is many times a card's cache.

    Args:
        tensors: on one device.
        after: called first: the work itself, whose code is to be in the caches.

    Raises:
        RuntimeError: the call finds no way to do so on this processor.
    """
    if tensors[0].device.type == "cuda":
        flush = torch.ones(READ_BYTES // 4096, 1024, device=tensors[0].device)
        return lambda: (after(), flush.sum().item())
    put_out = library(SOURCE, ()).put_out_of_cache
    put_out.argtypes = [ctypes.c_void_p, ctypes.c_int64]

    def run() -> None:
        after()
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if put_out(storage.data_ptr(), storage.nbytes()):
                raise RuntimeError("no way is known to empty this processor's caches")

    return run
