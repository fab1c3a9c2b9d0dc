"""What the keys of a block can score at most: how to choose blocks without reading them.

Shapes: `T` single query tokens, `M` blocks of a table, `B` slots a block, `Hkv` KV heads, `G` query
heads that share one, `D` numbers a head.
"""

from __future__ import annotations

import torch
from torch import Tensor


def block_extremes(keys: Tensor, filled: Tensor) -> Tensor:
    """Returns the smallest and the largest number of each channel over a block's valid keys.

    Slots behind `filled` may hold anything, NaN included.

    Args:
        keys: [N, Hkv, B, D].
        filled: [N], tokens in each block, at least one.

    Returns:
        The lows, then the highs, [2, N, Hkv, D].

    Example:
        >>> keys = torch.tensor([[3.0, -1.0], [1.0, 5.0], [9.0, 9.0]]).reshape(1, 1, 3, 2)
        >>> block_extremes(keys, torch.tensor([2])).tolist()
        [[[[1.0, -1.0]]], [[[3.0, 5.0]]]]
    """
    offset = torch.arange(keys.shape[2], device=keys.device)
    valid = (offset < filled[:, None])[:, None, :, None]
    lows = torch.where(valid, keys, torch.inf).amin(2)
    return torch.stack((lows, torch.where(valid, keys, -torch.inf).amax(2)))


def block_bounds(q: Tensor, extremes: Tensor) -> Tensor:
    """Returns for each block a score that none of its keys exceeds, without looking at the keys.

    A key lies between the block's lows and highs in every channel, so `q . k` is at most
    `sum_d max(q_d low_d, q_d high_d)`: the highs where the query is positive, the lows elsewhere.

    Args:
        q: [T, Hq, D].
        extremes: [2, T, M, Hkv, D], by token and block of its table; see `block_extremes`.

    Returns:
        [T, Hkv, G, M] float32, before the factor 1 / sqrt(D). What lies in blocks that a table only
        pads with is for the caller to mask.

    Source: Tang et al., "Quest", ICML 2024.

    Example:
        Keys (1, 4) and (3, 2): the query (2, -1) scores -2 and 4, the corner (3, 2) bounds both:

        >>> low, high = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
        >>> q = torch.tensor([2.0, -1.0]).reshape(1, 1, 2)
        >>> block_bounds(q, torch.stack((low, high)).reshape(2, 1, 1, 1, 2)).item()
        4.0
    """
    lows, highs = extremes.float()
    grouped = q.float().reshape(len(q), lows.shape[2], -1, q.shape[2])
    above = torch.einsum("thgd,tmhd->thgm", grouped.clamp(min=0), highs)
    return above + torch.einsum("thgd,tmhd->thgm", grouped.clamp(max=0), lows)


def top_blocks(bounds: Tensor, num_blocks: Tensor, top_k: int, first_blocks: int = 0) -> Tensor:
    """Chooses for each KV head the blocks whose bound is highest, and always the last one.

    The query heads of a KV head read the same blocks: a block counts for as much as the highest
    bound among them. So no key that stays unread scores above the lowest bound of what is read.

    Args:
        bounds: [T, Hkv, G, M], as `block_bounds` gives them.
        num_blocks: [T], how many of the M blocks each token's sequence has; 0 for padding.
        top_k: blocks to choose, at most M.
        first_blocks: how many of the first blocks are always among them.

    Returns:
        [T, Hkv, top_k] int64, rising, so that a last block that is not full comes last. A sequence
        with fewer blocks gets them all, and behind them numbers that mean nothing.

    Example:
        >>> bounds = torch.tensor([3.0, 9.0, 5.0, 1.0, torch.nan]).reshape(1, 1, 1, 5)
        >>> top_blocks(bounds, torch.tensor([4]), top_k=2).tolist()
        [[[1, 3]]]
    """
    block = torch.arange(bounds.shape[3], device=bounds.device)
    end = num_blocks[:, None, None]
    # A bound may be infinite, and a query NaN; what is always read goes before both all the same.
    most = torch.finfo(bounds.dtype).max
    scores = bounds.amax(2).nan_to_num(nan=most, posinf=most, neginf=-most)
    always = (block == end - 1) | (block < first_blocks)
    scores = scores.masked_fill(always, torch.inf).masked_fill(block >= end, -torch.inf)
    return scores.topk(top_k, dim=2).indices.sort(dim=2).values


def unread_share(bounds: Tensor, filled: Tensor, read: Tensor, lse: Tensor, scale: float) -> Tensor:
    """Returns how much of a query's attention can lie in the blocks it did not read, at most.

    Every unread key weighs at most `exp(scale * bound)`. With `s` the share returned, the output
    differs from exact attention by at most `s` times the range of the values, channel by channel:
    exact = (1 - s') out + s' other, with s' <= s and both means of values.

    Args:
        bounds: [..., M], one query's bound for each block.
        filled: [..., M], tokens in each block; 0 for padding.
        read: [..., M] bool, which blocks were read.
        lse: [...], log-sum-exp of the scaled scores of the keys that were read.
        scale: the factor on scores, 1 / sqrt(D).

    Returns:
        [...], from 0 to 1.

    Example:
        One key read, of weight exp(0); one block of three keys, each at most exp(0), was not:

        >>> read = torch.tensor([True, False])
        >>> filled, lse = torch.tensor([1, 3]), torch.tensor(0.0)
        >>> round(unread_share(torch.zeros(2), filled, read, lse, scale=1.0).item(), 6)
        0.75
    """
    weights = scale * bounds + filled.log()
    unread = weights.masked_fill(read | (filled == 0), -torch.inf).logsumexp(-1)
    return torch.sigmoid(unread - lse)
