"""Large pages of the operating system for large tensors on the CPU.

A processor finds where an address lies in a small cache of page-table entries. Blocks read in
random order miss it at every page of 4 KiB; of 2 MiB pages, 512 times fewer cover the pool.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

from torch import Tensor

PAGE_BYTES = 2**21
_MADV_HUGEPAGE = 14  # linux/mman.h


def ask_for_huge_pages(tensor: Tensor) -> int:
    """Asks Linux to back a tensor's storage with pages of 2 MiB, before it is first written.

    A hint: the values do not depend on it, and the system may not follow it. Pages that were
    written before keep their size.

    Args:
        tensor: contiguous or not; its whole storage is meant.

    Returns:
        How many bytes the system was asked about, in whole pages inside the storage. It is 0 where
        there are none, elsewhere than in a CPU's memory, and where the system knows no such pages.
    """
    libc = _libc()
    if tensor.device.type != "cpu" or libc is None:
        return 0
    storage = tensor.untyped_storage()
    start = -(-storage.data_ptr() // PAGE_BYTES) * PAGE_BYTES
    num_bytes = (storage.data_ptr() + storage.nbytes() - start) // PAGE_BYTES * PAGE_BYTES
    if num_bytes <= 0:
        return 0
    refused = libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(num_bytes), _MADV_HUGEPAGE)
    return 0 if refused else num_bytes


@cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
