"""Attention over blocks: several ways to the same numbers, each with a name.

Where a sequence's keys lie is one question, how a kernel reads them another. `gather` copies the
blocks into one run and calls the ordinary kernel; the others read the blocks where they are, part
by part, and merge the parts by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kvlib.sizes import near
from kvlib.tensors.attention import contiguous_attention, reference_attention
from kvlib.tensors.attention_parts import merge, partial_attention
from kvlib.tensors.kernels import paged_cpu, paged_triton
from kvlib.tensors.paged_context import PagedContext

CHUNK_TOKENS = 512
KERNEL_CHUNK = 8


def _gathered(side: Tensor, blocks: Tensor, first: int, end: int) -> Tensor:
    """Copies positions `[first, end)` of a table's blocks into one run, [Hkv, end - first, D]."""
    _, num_kv_heads, block_size, head_dim = side.shape
    low = first // block_size
    held = side[blocks[low : -(-end // block_size)].long()].transpose(0, 1)
    run = held.reshape(num_kv_heads, -1, head_dim)
    return run[:, first - low * block_size : end - low * block_size]


def gather(
    q: Tensor, keys: Tensor, values: Tensor, context: PagedContext, window: int | None
) -> tuple[Tensor, Tensor | None]:
    """Gathers each sequence's blocks and calls the contiguous kernel: the baseline."""
    out = torch.empty_like(q)
    for s, rows, first, end in context.spans(window):
        k, v = (_gathered(side, context.block_table[s], first, end) for side in (keys, values))
        out[rows] = contiguous_attention(q[rows], k, v, window=window)
    return out, None


def reference(
    q: Tensor, keys: Tensor, values: Tensor, context: PagedContext, window: int | None
) -> tuple[Tensor, Tensor]:
    """Attends in float64, block by block in Python: the definition, to be read."""
    out = torch.empty_like(q, dtype=torch.float64)
    lse = torch.empty(q.shape[:2], dtype=torch.float64, device=q.device)
    for s, rows, first, end in context.spans(window):
        k, v = (_gathered(side, context.block_table[s], first, end) for side in (keys, values))
        whole = (each.transpose(0, 1) for each in (k, v))
        out[rows], lse[rows] = reference_attention(q[rows], *whole, window=window)
    return out.to(q.dtype), lse


def chunked(
    q: Tensor, keys: Tensor, values: Tensor, context: PagedContext, window: int | None
) -> tuple[Tensor, Tensor]:
    """Gathers a few hundred tokens at a time and merges the parts: no long copy is ever made."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    for s, rows, first, end in context.spans(window):
        parts = []
        position = end - (rows.stop - rows.start)
        for low in range(first, end, CHUNK_TOKENS):
            high = min(low + CHUNK_TOKENS, end)
            k, v = (_gathered(side, context.block_table[s], low, high) for side in (keys, values))
            parts.append(partial_attention(q[rows], k, v, low, position, window))
        whole, lse[rows] = merge(parts)
        out[rows] = whole.to(q.dtype)
    return out, lse


def cpu(
    q: Tensor, keys: Tensor, values: Tensor, context: PagedContext, window: int | None
) -> tuple[Tensor, Tensor | None]:
    """Reads the blocks where they lie, by the compiled CPU kernel; long chunks are gathered.

    The kernel makes the most of memory, and decoding waits for memory. A chunk of many tokens waits
    for arithmetic instead, which the matrix products of the gathered way do faster.
    """
    return _short_by(paged_cpu.attend_rows, q, keys, values, context, window)


def _short_by(
    attend_rows: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    context: PagedContext,
    window: int | None,
) -> tuple[Tensor, Tensor | None]:
    """Attends sequences of few new tokens by a kernel for single queries, the others gathered."""
    rows, table = context.rows_of(window), context.block_table
    long = [s for s in context.spans(window) if s[1].stop - s[1].start > KERNEL_CHUNK]
    if not long:
        return attend_rows(q.contiguous(), keys, values, table, rows)
    out = torch.empty_like(q)
    few = torch.ones(len(q), dtype=torch.bool)
    for s, span, first, end in long:
        few[span] = False
        k, v = (_gathered(side, table[s], first, end) for side in (keys, values))
        out[span] = contiguous_attention(q[span], k, v, window=window)
    index = few.nonzero().flatten().to(q.device)
    if len(index):
        chosen = rows[:, index].contiguous()
        out[index], _ = attend_rows(q[index], keys, values, table, chosen)
    return out, None


def triton(
    q: Tensor, keys: Tensor, values: Tensor, context: PagedContext, window: int | None
) -> tuple[Tensor, Tensor | None]:
    """Reads the blocks where they lie, by the Triton kernel; gathers long chunks, as `cpu` does."""
    return _short_by(paged_triton.attend_rows, q, keys, values, context, window)


Way = Callable[[Tensor, Tensor, Tensor, PagedContext, "int | None"], "tuple[Tensor, Tensor | None]"]
WAYS: dict[str, Way] = {
    "reference": reference,
    "gather": gather,
    "chunked": chunked,
    "cpu": cpu,
    "triton": triton,
}


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    context: PagedContext,
    *,
    window: int | None = None,
    way: str = "gather",
) -> tuple[Tensor, Tensor | None]:
    """Attends a step's new tokens to their sequences' blocks.

    Args:
        q: [T, Hq, D], packed as the plan says.
        keys: [num_blocks, Hkv, block_size, D], one layer of a store.
        values: as `keys`.
        context: where each sequence's blocks are.
        window: how many keys a query sees at most, itself included; None for all.
        way: one of `WAYS`.

    Returns:
        The output [T, Hq, D] in the dtype of `q`, and the log-sum-exp of the scores [T, Hq], or
        None from a way that does not compute it.

    Raises:
        ValueError: there is no such way, or shapes, dtypes or devices do not fit. Nothing changes.
    """
    if way not in WAYS:
        raise ValueError(near(way, WAYS, "way to attend"))
    _check(q, keys, values, context)
    return WAYS[way](q, keys, values, context, window)


def _check(q: Tensor, keys: Tensor, values: Tensor, context: PagedContext) -> None:
    num_tokens = context.host.num_tokens
    if q.dim() != 3 or len(q) != num_tokens:
        raise ValueError(f"q must be [{num_tokens}, Hq, D], got {tuple(q.shape)}")
    if keys.dim() != 4 or keys.shape != values.shape or keys.shape[3] != q.shape[2]:
        raise ValueError(
            "keys and values must be [num_blocks, Hkv, block_size, D] alike, with the head_dim of "
            f"q: got {tuple(keys.shape)}, {tuple(values.shape)}, q {tuple(q.shape)}"
        )
    if q.shape[1] % keys.shape[1]:
        raise ValueError(
            f"query heads must be a multiple of KV heads: {q.shape[1]} and {keys.shape[1]}"
        )
    if keys.dtype != q.dtype or not q.device == keys.device == context.block_table.device:
        raise ValueError(
            f"q, keys and tables belong on one device, q and keys in one dtype: got {q.dtype} on "
            f"{q.device}, {keys.dtype} on {keys.device}, tables on {context.block_table.device}"
        )
    if keys.shape[2] != context.host.block_size:
        raise ValueError(
            f"the plan is for blocks of {context.host.block_size}, the store has {keys.shape[2]}"
        )
