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
from kvlib.tensors.kernels.rows import (
    addresses,
    constants,
    require_done,
    require_groups,
    require_rows,
    require_strides,
)

SOURCE = Path(__file__).with_name("paged_cpu.cpp")
TYPES = {torch.float32: "float", torch.float16: "_Float16", torch.bfloat16: "uint16_t"}
FAST_HEAD_DIMS = (64, 80, 96, 128, 256)


def kernel(dtype: torch.dtype, head_dim: int, group: int) -> ctypes.CDLL:
    """Returns the compiled kernel for these sizes.

    Raises:
        NoCompiler: it cannot be compiled on this machine.
    """
    return library(SOURCE, defines(dtype, head_dim, group))


def defines(dtype: torch.dtype, head_dim: int, group: int) -> tuple[str, ...]:
    """Returns what the kernel is compiled with for these sizes; zeros take the general loops."""
    known_dim, known_group = constants(head_dim, group, FAST_HEAD_DIMS)
    return (f"TYPE={TYPES[dtype]}", f"HEAD_DIM={known_dim}", f"GROUP={known_group}")


def attend_rows(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    rows: Tensor,
    threads: int | None = None,
    *,
    compiled: ctypes.CDLL | None = None,
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
        compiled: what to call in place of `kernel`, from the same file with other `defines`.

    Returns:
        The output [R, Hq, D] in the dtype of `q`, and the log-sum-exp of the scores [R, Hq].

    Raises:
        ValueError: a layout or a size that the kernel does not take, or a row that sees positions
            without a block. Nothing is read outside of the blocks.
        NoCompiler: it cannot be compiled on this machine.
    """
    _check(q, keys, values, table, rows)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32)
    head_dim, group = q.shape[2], q.shape[1] // keys.shape[1]
    call = _call(q.dtype, head_dim, group) if compiled is None else _typed(compiled)
    sizes = sizes_of(*q.shape[:2], keys, table)
    refused = call(
        *(each.data_ptr() for each in (q, keys, values, out, lse, table)),
        *addresses(rows),
        sizes,
        head_dim**-0.5,
        torch.get_num_threads() if threads is None else threads,
    )
    require_done(refused, sizes, table, len(keys), keys.shape[2])
    return out, lse


Sizes = ctypes.c_int64 * 11


def sizes_of(num_rows: int, num_q_heads: int, keys: Tensor, table: Tensor) -> ctypes.Array:
    """Returns the whole numbers that the kernel asks for, in its order.

    Args:
        num_rows: query tokens.
        num_q_heads: Hq.
        keys: [num_blocks, Hkv, block_size, D], as for `attend_rows`.
        table: [S, M].
    """
    num_blocks, num_kv_heads, block_size, head_dim = keys.shape
    heads = (num_kv_heads, num_q_heads // num_kv_heads, head_dim)
    strides = (table.shape[1], *keys.stride()[:3])
    return Sizes(num_rows, *heads, block_size, *strides, len(table), num_blocks)


@cache
def _call(dtype: torch.dtype, head_dim: int, group: int) -> Callable[..., int]:
    """The kernel as a function of addresses, looked up once."""
    return _typed(kernel(dtype, head_dim, group))


def _typed(compiled: ctypes.CDLL) -> Callable[..., int]:
    call = compiled.kvlib_paged_attention
    call.argtypes = [*[ctypes.c_void_p] * 9, Sizes, ctypes.c_float, ctypes.c_int]
    return call


def _check(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor) -> None:
    if q.dtype not in TYPES or not q.dtype == keys.dtype == values.dtype:
        raise ValueError(
            f"one of {list(TYPES)} for q, keys and values, got {q.dtype}, {keys.dtype}"
        )
    if keys.shape != values.shape or keys.shape[3] != q.shape[2]:
        raise ValueError(
            "keys and values must be alike and have the head_dim of q: got "
            f"{tuple(keys.shape)}, {tuple(values.shape)}, q {tuple(q.shape)}"
        )
    require_strides(q, keys, values)
    require_groups(q.shape[1], keys.shape[1])
    require_rows(table, rows, len(q))
    if not (q.is_cpu and keys.is_cpu and values.is_cpu and table.is_cpu and rows.is_cpu):
        raise ValueError("the CPU kernel takes tensors on the CPU")
