"""Attention over some blocks of a sequence: each KV head is a sequence with a short table.

Shapes: `T` single query tokens, `K` chosen blocks each, `N` blocks of the pool of `B` slots, `Hq`
query heads, `Hkv` KV heads, `D` numbers a head.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kvlib.step_parts import single_lens
from kvlib.tensors.paged_attention import paged_attention
from kvlib.tensors.paged_context import PagedContext


def tokens_read(context_len: int, block_size: int, num_chosen: int) -> int:
    """Returns how many tokens a query reads in its chosen blocks: whole ones, and the last one.

    Example:
        >>> tokens_read(14, 4, 2), tokens_read(5, 4, 2)  # of 4 blocks one whole and 2 tokens
        (6, 5)
    """
    return context_len - max(0, -(-context_len // block_size) - num_chosen) * block_size


def attend_chosen(
    q: Tensor, keys: Tensor, values: Tensor, context: PagedContext, places: Tensor, way: str
) -> Tensor:
    """Attends single queries to chosen blocks, in each KV head to others.

    Args:
        q: [T, Hq, D], each the only new token of its sequence.
        keys: of one layer, [N, Hkv, B, D].
        values: likewise.
        context: of their plan.
        places: [T, Hkv, K] int64, places in the sequence's table, rising; the last one is its last.
        way: how to attend; see `kvlib.tensors.paged_attention.WAYS`.

    Returns:
        [T, Hq, D].
    """
    few = _context(context, places, keys.shape[2])
    grouped = q.reshape(len(few.host.positions), -1, q.shape[2])
    by_head = (side.flatten(0, 1)[:, None] for side in (keys, values))
    return paged_attention(grouped, *by_head, few, way=way)[0].view_as(q)


def _context(context: PagedContext, places: Tensor, size: int) -> PagedContext:
    """Each KV head becomes a sequence of its own, with the chosen blocks as its table."""
    _, heads, top_k = places.shape
    owner, _, end = context.rows_of(None)
    table = context.block_table[owner].long()[:, None].expand(-1, heads, -1)
    head = torch.arange(heads, device=places.device)[:, None]
    chosen = (table.gather(2, places) * heads + head).int().reshape(-1, top_k)
    skipped = (-(-end // size) - top_k).clamp(min=0) * size
    seen = (end - skipped).repeat_interleave(heads)
    rows = torch.stack((torch.arange(len(seen), device=places.device).int(), seen * 0, seen))
    held = [tokens_read(n, size, top_k) for n in single_lens(context.host) for _ in range(heads)]
    starts = tuple(range(len(held) + 1))
    ends = (0,) * (len(seen) - len(held))
    host = replace(
        context.host,
        seq_ids=starts[:-1],
        positions=(*(n - 1 for n in held), *ends),
        query_start=starts,
        context_lens=tuple(held),
    )
    start = torch.arange(len(seen) + 1, device=places.device).int()
    return PagedContext(host, chosen, seen, start, {None: rows.int()})
