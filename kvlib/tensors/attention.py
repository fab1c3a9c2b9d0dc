"""Attention of new tokens over cached ones: a reference to read, and the fast contiguous way.

Both take the queries of the last `Tq` tokens of a sequence and the keys and values of all its `Tk`
tokens. So query row `i` sits at position `Tk - Tq + i` and sees keys up to that position.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def causal_mask(
    num_queries: int,
    context_len: int,
    *,
    window: int | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Returns which keys each query may see, bool [num_queries, context_len], True = sees.

    The queries are the last tokens of the context, so the diagonal ends in the lower right corner.
    A mask aligned to the upper left, as a square prompt mask would be, hides almost all of the
    cache from the new tokens.

    Args:
        num_queries: Tq, at most `context_len`.
        context_len: Tk, cached and new tokens together.
        window: how many keys a query sees at most, itself included; None for all.
        device: where to make the mask.

    Raises:
        ValueError: more queries than context, or a window below 1.

    Example:
        >>> causal_mask(2, 4).int().tolist()
        [[1, 1, 1, 0], [1, 1, 1, 1]]
        >>> causal_mask(2, 4, window=2).int().tolist()
        [[0, 1, 1, 0], [0, 0, 1, 1]]
    """
    if not 0 <= num_queries <= context_len:
        raise ValueError(
            f"the queries are the last tokens of the context: {num_queries} queries, "
            f"{context_len} tokens"
        )
    if window is not None and window < 1:
        raise ValueError(f"a window counts the query itself, so it is at least 1, got {window}")
    position = torch.arange(context_len - num_queries, context_len, device=device)[:, None]
    key = torch.arange(context_len, device=device)[None, :]
    seen = key <= position
    return seen if window is None else seen & (key > position - window)


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention in float64, written to be read: the definition that the fast ways must meet.

    Args:
        q: [Tq, Hq, D], queries of the last Tq tokens.
        k: [Tk, Hkv, D], keys of all tokens; query head h reads KV head h // (Hq // Hkv).
        v: [Tk, Hkv, D].
        window: as for `causal_mask`.
        scale: factor on the scores, 1 / sqrt(D) by default.

    Returns:
        The output [Tq, Hq, D] and the log-sum-exp of the scores [Tq, Hq], both float64. A query
        that sees nothing cannot occur: it sees itself.

    Raises:
        ValueError: shapes that do not fit together.

    Source: Vaswani et al. 2017, equation 1; grouped heads as in Ainslie et al. 2023.

    Example:
        With equal scores a query averages what it sees:

        >>> v = torch.tensor([1.0, 3.0]).reshape(2, 1, 1)
        >>> out, _ = reference_attention(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)
        >>> out.flatten().tolist()
        [1.0, 2.0]
    """
    _check_shapes(q, k, v)
    num_queries, num_q_heads, head_dim = q.shape
    group = num_q_heads // k.shape[1]
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    seen = causal_mask(num_queries, len(k), window=window, device=q.device)
    outputs, log_sum_exps = [], []
    for head in range(num_q_heads):
        head_k, head_v = k[:, head // group].double(), v[:, head // group].double()
        scores = scale * (q[:, head].double() @ head_k.T)
        scores = scores.masked_fill(~seen, -math.inf)
        outputs.append(torch.softmax(scores, dim=-1) @ head_v)
        log_sum_exps.append(torch.logsumexp(scores, dim=-1))
    return torch.stack(outputs, dim=1), torch.stack(log_sum_exps, dim=1)


def contiguous_attention(q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None) -> Tensor:
    """Attention over contiguous keys and values by torch's fused kernel; copies neither.

    Three cases, since each has a fast form of its own: a single query (decode) has no mask, and
    the queries of one KV head become the rows of one small matrix; a prompt on an empty cache is
    square and uses the kernel's own causal flag; a chunk on top of a cache needs an explicit mask,
    because that flag aligns to the upper left.

    Args:
        q: [Tq, Hq, D], queries of the last Tq tokens.
        k: [Hkv, Tk, D] keys of all tokens, as `KVStore.view` gives them.
        v: [Hkv, Tk, D].
        window: as for `causal_mask`.

    Returns:
        [Tq, Hq, D], in the dtype of `q`; empty for an empty query.

    Raises:
        ValueError: shapes that do not fit together, or a window below 1.

    Example:
        >>> v = torch.tensor([1.0, 3.0]).reshape(1, 2, 1)
        >>> contiguous_attention(torch.zeros(1, 1, 1), torch.zeros(1, 2, 1), v).item()
        2.0
    """
    _check_shapes(q, k.transpose(0, 1), v.transpose(0, 1))
    num_queries, num_q_heads, head_dim = q.shape
    num_kv_heads, context_len, _ = k.shape
    if num_queries == 0:
        return torch.empty_like(q)
    if num_queries == 1 and window is None:
        grouped = q.reshape(1, num_kv_heads, num_q_heads // num_kv_heads, head_dim)
        out = scaled_dot_product_attention(grouped, k[None], v[None])
        return out.reshape(1, num_q_heads, head_dim)
    square = num_queries == context_len and window is None
    mask = None
    if not square:
        mask = causal_mask(num_queries, context_len, window=window, device=q.device)
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k[None],
        v[None],
        attn_mask=mask,
        is_causal=square,
        enable_gqa=num_q_heads != num_kv_heads,
    )
    return out[0].transpose(0, 1)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuses anything but queries [Tq, Hq, D] with keys and values [Tk, Hkv, D]."""
    if q.dim() != 3 or k.dim() != 3 or k.shape != v.shape or q.shape[2] != k.shape[2]:
        raise ValueError(
            "q, k and v must be [tokens, heads, head_dim] with k and v alike and one head_dim: got "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"query heads must be a multiple of KV heads: {q.shape[1]} and {k.shape[1]}"
        )
    if len(q) > len(k):
        raise ValueError(f"the queries are the last tokens: {len(q)} queries, {len(k)} keys")
