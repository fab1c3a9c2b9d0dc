"""Attention over a part of the keys, and the parts merged into attention over all of them."""

from __future__ import annotations

import torch
from torch import Tensor


def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merges attention over parts of the keys into attention over all of them, in any order.

    Each part is a softmax over its own keys. Weighted by what share of the whole sum its keys have,
    the parts add up to the softmax over all: `out = sum_i exp(lse_i - lse) out_i` with
    `lse = logsumexp_i lse_i`. A part without keys has `lse = -inf` and counts for nothing.

    Args:
        parts: outputs [..., D] with their log-sum-exp [...].

    Returns:
        Output and log-sum-exp of the whole; zeros and -inf where no part has a key. What is NaN in
        a part is NaN in the whole.

    Raises:
        ValueError: there is no part.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.

    Example:
        >>> one = (torch.tensor([[1.0]]), torch.tensor([0.0]))
        >>> two = (torch.tensor([[4.0]]), torch.tensor([2.0]).log())
        >>> round(merge([one, two])[0].item(), 3)
        3.0
    """
    if not parts:
        raise ValueError("merging takes at least one part, got 0")
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    shares, whole = shares_of(lses, dim=0)
    weighted = torch.where(shares[..., None] == 0, 0.0, outs * shares[..., None])
    return weighted.sum(0).to(outs.dtype), whole


def shares_of(scores: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Returns what share of the sum of powers each score has, and the logarithm of the sum.

    The shares add up to 1 however large the scores are: divided by the sum itself, and not by its
    logarithm, which beside a score of a million has steps of 1/16. Of no powers, as there are
    no scores or all are -inf, they are 0.

    Example:
        >>> shares, lse = shares_of(torch.tensor([1e9, 1e9, -torch.inf]), dim=0)
        >>> shares.tolist(), lse.item()
        ([0.5, 0.5, 0.0], 1000000000.0)
    """
    if not scores.shape[dim]:
        return scores, scores.new_full(scores.sum(dim).shape, -torch.inf)
    peak = scores.amax(dim, keepdim=True)
    # Where there is nothing, -inf - -inf would be NaN.
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    powers = torch.exp(scores - peak)
    total = powers.sum(dim, keepdim=True)
    shares = powers / torch.where(total == 0, 1.0, total)
    return shares, (peak + total.log()).squeeze(dim)


def partial_attention(
    q: Tensor, k: Tensor, v: Tensor, first: int, position: int, window: int | None
) -> tuple[Tensor, Tensor]:
    """Attends queries to a part of their keys, in float32, and says how much the part weighs.

    Args:
        q: [Tq, Hq, D].
        k: [Hkv, Tk, D], keys of the positions `[first, first + Tk)`.
        v: [Hkv, Tk, D].
        first: position of the first key.
        position: position of the first query.
        window: how many keys a query sees at most, itself included; None for all.

    Returns:
        Output [Tq, Hq, D] and log-sum-exp [Tq, Hq], both float32; zeros and -inf for a query that
        sees no key of this part.
    """
    num_queries, num_q_heads, head_dim = q.shape
    group = num_q_heads // len(k)
    grouped = q.float().reshape(num_queries, len(k), group, head_dim) * head_dim**-0.5
    scores = torch.einsum("qhgd,hkd->qhgk", grouped, k.float())
    where_q = torch.arange(position, position + num_queries, device=q.device)[:, None]
    where_k = torch.arange(first, first + k.shape[1], device=q.device)[None, :]
    seen = where_k <= where_q
    if window is not None:
        seen &= where_k > where_q - window
    scores = scores.masked_fill(~seen[:, None, None, :], -torch.inf)
    weights, lse = shares_of(scores, dim=-1)
    out = torch.einsum("qhgk,hkd->qhgd", weights, v.float())
    return out.reshape(q.shape), lse.reshape(num_queries, num_q_heads)
