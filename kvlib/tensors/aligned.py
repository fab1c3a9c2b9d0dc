"""Tensors whose rows start at addresses that a processor or a card reads best."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvlib.sizes import whole_number
from kvlib.tensors.huge_pages import ask_for_huge_pages


def aligned_empty(
    shape: tuple[int, ...], row_alignment_bytes: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Allocates a tensor whose rows (its last axis) each start at a multiple of an alignment.

    Rows keep their logical width: the padding lies between them, outside of the view that is
    returned. The base is aligned too, whatever address the allocator chose. On a CPU, large tensors
    are asked to lie in large pages of memory.

    Args:
        shape: logical shape; a row has `shape[-1]` numbers.
        row_alignment_bytes: a power of two, at least the size of one number.
        dtype: of the numbers.
        device: where to allocate.

    Raises:
        TypeError, ValueError: the alignment is not such a power of two. Nothing is allocated.

    Example:
        Rows of 100 float32 numbers are 400 bytes; aligned to 256 bytes they are 512 bytes apart:

        >>> rows = aligned_empty((3, 100), 256, torch.float32, "cpu")
        >>> tuple(rows.shape), rows.stride(0) * 4, rows.data_ptr() % 256
        ((3, 100), 512, 0)
    """
    whole_number("row_alignment_bytes", row_alignment_bytes)
    if row_alignment_bytes & (row_alignment_bytes - 1) or row_alignment_bytes < dtype.itemsize:
        raise ValueError(
            f"row_alignment_bytes must be a power of two of at least {dtype.itemsize}, the bytes "
            f"of one {dtype}, got {row_alignment_bytes}"
        )
    step = row_alignment_bytes // dtype.itemsize
    stride = -(-shape[-1] // step) * step
    numbers = math.prod(shape[:-1]) * stride
    flat = torch.empty(numbers + step - 1, dtype=dtype, device=device)
    ask_for_huge_pages(flat)
    start = -flat.data_ptr() % row_alignment_bytes // dtype.itemsize
    return flat[start : start + numbers].view(*shape[:-1], stride)[..., : shape[-1]]
