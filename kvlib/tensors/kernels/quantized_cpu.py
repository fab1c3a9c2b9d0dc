"""The CPU kernel for blocks of codes: dequantises in registers, writes nothing down in between.

Head sizes that are met often get a library of their own for each number of query heads per KV
head; it knows all formats. Other sizes, and groups that no vector fits into, take general loops.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kvlib.precision import SCALE_BYTES, Precision
from kvlib.tensors.kernels.build import library
from kvlib.tensors.kernels.rows import (
    addresses,
    constants,
    require_done,
    require_groups,
    require_rows,
)

SOURCE = Path(__file__).with_name("quantized_cpu.cpp")
FAST_HEAD_DIMS = (64, 128, 256)


def kernel(head_dim: int, group: int) -> ctypes.CDLL:
    """Returns the compiled kernel for these sizes.

    Raises:
        NoCompiler: it cannot be compiled on this machine.
    """
    known_dim, known_group = constants(head_dim, group, FAST_HEAD_DIMS)
    return library(SOURCE, (f"HEAD_DIM={known_dim}", f"GROUP={known_group}"))


def attend_rows(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    formats: tuple[Precision, Precision],
    block_size: int,
    table: Tensor,
    rows: Tensor,
    threads: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attends single query tokens to the positions each of them sees.

    Args:
        q: [R, Hq, D], any floating dtype; the arithmetic is float32.
        keys: [num_blocks, Hkv, bytes of a block] uint8, contiguous.
        values: alike, in their own format.
        formats: of keys and of values.
        block_size: tokens per block.
        table: [S, M] int32, contiguous: block ids of each sequence in logical order.
        rows: [3, R] int32, contiguous: for each query token its sequence (a row of the table) and
            the half-open range of positions it sees; an empty range gives zeros.
        threads: at most this many; torch's number by default.

    Returns:
        The output [R, Hq, D] in float32, and the log-sum-exp of the scores [R, Hq].

    Raises:
        ValueError: a layout or a size that the kernel does not take, or a row that sees positions
            without a block. Nothing is read outside of the blocks.
        NoCompiler: it cannot be compiled on this machine.
    """
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    group = num_q_heads // num_kv_heads
    sides = (keys, values)
    _check(q, sides, formats, block_size, table, rows)
    whole = q.float().contiguous()
    out, lse = torch.empty_like(whole), torch.empty(q.shape[:2], dtype=torch.float32)
    both = zip(sides, formats, strict=True)
    numbers = [n for each in both for n in _side(*each, head_dim, block_size)]
    sizes = (num_rows, num_kv_heads, group, head_dim, block_size, table.shape[1], len(table))
    refused = _call(head_dim, group)(
        *(each.data_ptr() for each in (whole, keys, values, out, lse, table)),
        *addresses(rows),
        _Sizes(*sizes),
        _Sides(*numbers),
        _Floats(*(x for each in formats for x in (_zero(each), each.scale or 0.0))),
        head_dim**-0.5,
        torch.get_num_threads() if threads is None else threads,
    )
    require_done(refused, sizes, table, len(keys), block_size)
    return out, lse


_Sizes, _Sides, _Floats = ctypes.c_int64 * 7, ctypes.c_int64 * 24, ctypes.c_float * 4


def _zero(precision: Precision) -> float:
    """The stored code that stands for zero, where no minimum is kept."""
    return 0.0 if precision.kind == "fp8" else precision.largest_code


def _side(data: Tensor, precision: Precision, head_dim: int, block_size: int) -> tuple[int, ...]:
    """The whole numbers of one side, in the order of the kernel's `Side`."""
    num_blocks, num_kv_heads, block_bytes = data.shape
    layout = precision.layout(head_dim, block_size)
    return (
        num_blocks,
        num_kv_heads * block_bytes,
        block_bytes,
        *layout[:3],
        precision.group_size if precision.along == "token" and precision.group_size else head_dim,
        precision.bits,
        precision.kind == "fp8",
        precision.along == "channel",
        precision.has_minimum,
        SCALE_BYTES[precision.scale_dtype] if precision.scale is None else 0,
    )


@cache
def _call(head_dim: int, group: int) -> Callable[..., int]:
    """The kernel as a function of addresses, looked up once."""
    call = kernel(head_dim, group).kvlib_quantized_attention
    pointers = [ctypes.c_void_p] * 9
    call.argtypes = [*pointers, _Sizes, _Sides, _Floats, ctypes.c_float, ctypes.c_int]
    return call


def _check(
    q: Tensor,
    sides: tuple[Tensor, Tensor],
    formats: tuple[Precision, Precision],
    block_size: int,
    table: Tensor,
    rows: Tensor,
) -> None:
    num_q_heads, head_dim = q.shape[1:]
    num_kv_heads = sides[0].shape[1]
    require_groups(num_q_heads, num_kv_heads)
    for name, data, precision in zip(("keys", "values"), sides, formats, strict=True):
        expected = (num_kv_heads, precision.layout(head_dim, block_size).block_bytes)
        fits = data.dtype == torch.uint8 and data.is_contiguous() and data.dim() == 3
        if not fits or tuple(data.shape[1:]) != expected:
            raise ValueError(
                f"{name} are contiguous uint8 [num_blocks, {expected[0]}, {expected[1]}] in this "
                f"format, got {data.dtype} {tuple(data.shape)}"
            )
    require_rows(table, rows, len(q))
    if not all(each.is_cpu for each in (q, *sides, table, rows)):
        raise ValueError("the CPU kernel takes tensors on the CPU")
