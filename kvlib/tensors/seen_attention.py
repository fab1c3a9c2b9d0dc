"""Attention to a first part of some keys: what one rank of several finds for a query."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlib.tensors.attention_parts import merge, shares_of
from kvlib.tensors.paged_attention import CHUNK_TOKENS


def seen_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Attends each query to a first part of some keys, and says how much that part weighs.

    Args:
        q: [Tq, Hq, D].
        k: [Hkv, Tk, D].
        v: [Hkv, Tk, D].
        seen: [Tq], how many of the first keys each query sees; 0 or less for none.

    Returns:
        Output [Tq, Hq, D] and log-sum-exp [Tq, Hq], float32; zeros and -inf where nothing is seen.

    Example:
        >>> v = torch.tensor([1.0, 3.0]).reshape(1, 2, 1)
        >>> seen = torch.tensor([0, 1, 2])
        >>> out, _ = seen_attention(torch.zeros(3, 1, 1), torch.zeros(1, 2, 1), v, seen)
        >>> out.flatten().tolist()
        [0.0, 1.0, 2.0]
    """
    num_queries, num_q_heads, head_dim = q.shape
    grouped = q.float().reshape(num_queries, len(k), -1, head_dim) * head_dim**-0.5
    scores = torch.einsum("qhgd,hkd->qhgk", grouped, k.float())
    hidden = torch.arange(k.shape[1], device=q.device) >= seen[:, None]
    scores = scores.masked_fill(hidden[:, None, None, :], -torch.inf)
    weights, lse = shares_of(scores, dim=-1)
    out = torch.einsum("qhgk,hkd->qhgd", weights, v.float())
    return out.reshape(q.shape), lse.reshape(num_queries, num_q_heads)


def attend_in_chunks(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, held: int, seen: Tensor
) -> tuple[Tensor, Tensor]:
    """Attends one sequence's queries to its tokens held here, some hundred keys at a time.

    Args:
        q: [Tq, Hq, D].
        keys: [num_blocks, Hkv, block_size, D], one layer of a store.
        values: alike.
        blocks: [M], the sequence's blocks here, in order.
        held: tokens of the sequence here, in those blocks.
        seen: [Tq], how many of them each query sees.

    Returns:
        As `seen_attention`.
    """
    if not held:
        nothing = keys.new_zeros(keys.shape[1], 0, keys.shape[3])
        return seen_attention(q, nothing, nothing, seen)
    block_size, parts = keys.shape[2], []
    step = -(-CHUNK_TOKENS // block_size) * block_size
    for first in range(0, held, step):
        end = min(first + step, held)
        chosen = blocks[first // block_size : -(-end // block_size)].long()
        k, v = (
            side[chosen].transpose(0, 1).flatten(1, 2)[:, : end - first] for side in (keys, values)
        )
        parts.append(seen_attention(q, k, v, seen - first))
    return merge(parts)
