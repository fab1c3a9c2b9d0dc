"""More ways to attend over blocks, for the kernel lab: made to be compared, not to be served with.

Each is one idea apart from another: a column of the table at a time, all parts side by side, the
CPU kernel without its prefetching or without sizes known to the compiler. They take what
`paged_attention.WAYS` take, one new token a sequence.

Axes beside those of the package: `R` query tokens, `P` parts, `G` query heads of a KV head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvlib.tensors.attention_parts import merge
from kvlib.tensors.kernels import paged_cpu
from kvlib.tensors.kernels.build import library
from kvlib.tensors.paged_attention import Way
from kvlib.tensors.paged_context import PagedContext


def _scores(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """Scores [R, P, Hkv, G, K] of queries with keys [R, P, Hkv, K, D]; -inf where unseen."""
    num_kv_heads, head_dim = k.shape[2], q.shape[2]
    grouped = q.float().unflatten(1, (num_kv_heads, -1)) * head_dim**-0.5
    scores = torch.einsum("rhgd,rphkd->rphgk", grouped, k.float())
    return scores.masked_fill(~seen[:, :, None, None], -torch.inf)


def _part(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Output [R, P, Hkv, G, D] and log-sum-exp [R, P, Hkv, G] of parts [R, P, Hkv, K, D]."""
    scores = _scores(q, k, seen)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None])
    # A weight of nothing does not silence what lies in a free slot: 0 x NaN is NaN.
    clean = v.float().masked_fill(~seen[:, :, None, :, None], 0.0)
    return torch.einsum("rphgk,rphkd->rphgd", weights, clean), lse


def block_major(
    q: Tensor, keys: Tensor, values: Tensor, context: PagedContext, window: int | None
) -> tuple[Tensor, Tensor]:
    """Takes the j-th block of every sequence, then the next: one block each is copied at a time.

    Short sequences wait for the longest: its number of blocks is everybody's number of rounds.
    """
    return _columns(q, keys, values, context, window, width=1)


def split_kv(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    context: PagedContext,
    window: int | None,
    splits: int = 4,
) -> tuple[Tensor, Tensor]:
    """Attends to all parts of all sequences side by side, then merges them.

    Args:
        q: [R, Hq, D].
        keys: [num_blocks, Hkv, block_size, D].
        values: alike.
        context: where each sequence's blocks are.
        window: how many keys a query sees at most; None for all.
        splits: parts of the longest sequence.

    Raises:
        ValueError: fewer than one part.
    """
    if splits < 1:
        raise ValueError(f"a sequence has at least 1 part, asked for {splits}")
    width = -(-context.block_table.shape[1] // splits)
    return _columns(q, keys, values, context, window, width=max(1, width), at_once=True)


def _columns(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    context: PagedContext,
    window: int | None,
    width: int,
    at_once: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attends by parts of `width` columns of the table, one after another or side by side."""
    owner, first, end = context.rows_of(window).long()
    table = context.block_table.long()[owner]
    rest = -table.shape[1] % width
    table = torch.nn.functional.pad(table, (0, rest)).unflatten(1, (-1, width))  # [R, P, width]
    at = torch.arange(table[0].numel() * keys.shape[2], device=q.device).view(table.shape[1], -1)
    seen = (at >= first[:, None, None]) & (at < end[:, None, None])  # [R, P, K]
    step = table.shape[1] if at_once else 1
    parts: list[tuple[Tensor, Tensor]] = []
    for j in range(0, table.shape[1], step):
        now = slice(j, j + step)
        if not seen[:, now].any():
            continue
        k, v = (side[table[:, now]].transpose(2, 3).flatten(3, 4) for side in (keys, values))
        out, lse = _part(q, k, v, seen[:, now])
        found = [*zip(out.unbind(1), lse.unbind(1), strict=True)]
        parts = [merge([*parts, *found])]
    whole, lse = parts[0]
    return whole.flatten(1, 2).to(q.dtype), lse.flatten(1, 2)


def compiled(*, prefetch: bool = True, known_sizes: bool = True) -> Way:
    """Returns the CPU kernel, compiled from the very same file with something left out.

    Args:
        prefetch: whether it asks memory for rows before it uses them. Without, the compiler is told
            that the word stands for nothing.
        known_sizes: whether head size and group are constants to the compiler; without, it takes
            the general loops, which ask for nothing ahead.

    Raises:
        NoCompiler: when it is called, where nothing can be compiled.
    """

    def attend(
        q: Tensor, keys: Tensor, values: Tensor, context: PagedContext, window: int | None
    ) -> tuple[Tensor, Tensor]:
        group = q.shape[1] // keys.shape[1]
        sizes = (q.shape[2], group) if known_sizes else (0, 0)
        words = paged_cpu.defines(q.dtype, *sizes)
        if not prefetch:
            words += ("__builtin_prefetch(...)=",)
        compiled = library(paged_cpu.SOURCE, words)
        table, rows = context.block_table, context.rows_of(window)
        return paged_cpu.attend_rows(q, keys, values, table, rows, compiled=compiled)

    return attend
