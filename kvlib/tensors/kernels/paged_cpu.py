"""The CPU kernel: reads each block once, where it lies, for all queries that share its KV head.

It works for any layout of a store that has the head's numbers side by side: blocks of a paged
cache, and the rows of a contiguous one, which are long blocks. Sizes that are met often get a
library of their own, in which they are constants; all others share one with general loops.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kvlib.tensors.kernels.build import library

SOURCE = Path(__file__).with_name("paged_cpu.cpp")
TYPES = {torch.float32: "float", torch.float16: "_Float16", torch.bfloat16: "uint16_t"}
FAST_HEAD_DIMS = (64, 80, 96, 128, 256)
FAST_GROUPS = range(1, 9)


def kernel(dtype: torch.dtype, head_dim: int, group: int) -> ctypes.CDLL:
    """Returns the compiled kernel for these sizes.

    Raises:
        NoCompiler: it cannot be compiled on this machine.
    """
    fast = head_dim in FAST_HEAD_DIMS and group in FAST_GROUPS
    sizes = (head_dim, group) if fast else (0, 0)
    defines = (f"TYPE={TYPES[dtype]}", f"HEAD_DIM={sizes[0]}", f"GROUP={sizes[1]}")
    return library(SOURCE, defines)


def attend_rows(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor, threads: int | None = None
) -> tuple[Tensor, Tensor]:
    """Attends single query tokens to the positions each of them sees.

    Args:
        q: [R, Hq, D], contiguous, on the CPU.
        keys: [num_blocks, Hkv, block_size, D] with the last axis contiguous.
        values: alike, with the same strides.
        table: [S, M] int32, contiguous: block ids of each sequence in logical order.
        rows: [3, R] int32, contiguous: for each query token its sequence (a row of the table) and
            the half-open range of positions it sees; an empty range gives zeros.
        threads: at most this many; torch's number by default.

    Returns:
        The output [R, Hq, D] in the dtype of `q`, and the log-sum-exp of the scores [R, Hq].

    Raises:
        ValueError: a layout or a size that the kernel does not take, or a row that sees positions
            without a block. Nothing is read outside of the blocks.
        NoCompiler: it cannot be compiled on this machine.
    """
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads, block_size = keys.shape[1:3]
    group = num_q_heads // num_kv_heads
    _check(q, keys, values, table, rows, group)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32)
    threads = torch.get_num_threads() if threads is None else threads
    strides = (table.shape[1], *keys.stride()[:3])
    sizes = (num_rows, num_kv_heads, group, head_dim, block_size, *strides, len(table), len(keys))
    refused = _call(q.dtype, head_dim, group)(
        q.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        out.data_ptr(),
        lse.data_ptr(),
        table.data_ptr(),
        *(rows.data_ptr() + 4 * num_rows * i for i in range(3)),
        _Sizes(*sizes),
        head_dim**-0.5,
        threads,
    )
    if refused == 1:
        raise ValueError(f"the kernel was compiled for other sizes than {sizes}")
    if refused:
        raise ValueError(
            f"a row sees positions without a block: there are {len(keys)} blocks of {block_size},"
            f" and a table of {len(table)} sequences, {table.shape[1]} blocks each"
        )
    return out, lse


_Sizes = ctypes.c_int64 * 11


@cache
def _call(dtype: torch.dtype, head_dim: int, group: int) -> Callable[..., int]:
    """The kernel as a function of addresses, looked up once."""
    call = kernel(dtype, head_dim, group).kvlib_paged_attention
    call.argtypes = [*[ctypes.c_void_p] * 9, _Sizes, ctypes.c_float, ctypes.c_int]
    return call


def _check(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor, group: int
) -> None:
    if q.dtype not in TYPES or not q.dtype == keys.dtype == values.dtype:
        raise ValueError(
            f"one of {list(TYPES)} for q, keys and values, got {q.dtype}, {keys.dtype}"
        )
    if keys.shape != values.shape or keys.shape[3] != q.shape[2]:
        raise ValueError(
            "keys and values must be alike and have the head_dim of q: got "
            f"{tuple(keys.shape)}, {tuple(values.shape)}, q {tuple(q.shape)}"
        )
    if not q.is_contiguous() or keys.stride(3) != 1 or keys.stride() != values.stride():
        raise ValueError(
            "q must be contiguous, keys and values alike with the last axis contiguous"
        )
    if group < 1 or q.shape[1] % keys.shape[1]:
        raise ValueError(
            f"query heads must be a multiple of KV heads: {q.shape[1]} and {keys.shape[1]}"
        )
    whole = table.dtype == rows.dtype == torch.int32 and rows.is_contiguous() and table.dim() == 2
    whole = whole and table.is_contiguous()
    if not whole or tuple(rows.shape) != (3, len(q)):
        raise ValueError(f"table [S, M] and rows [3, {len(q)}] are int32, got {tuple(rows.shape)}")
    if not (q.is_cpu and keys.is_cpu and values.is_cpu and table.is_cpu and rows.is_cpu):
        raise ValueError("the CPU kernel takes tensors on the CPU")
