"""Attention over blocks: several ways to the same numbers, chosen by device and always nameable.

Where a sequence's keys lie is one question, how a kernel reads them another. `gather` copies the
blocks into one run and calls the ordinary kernel; the others read the blocks where they are, part
by part, and merge the parts by their log-sum-exp.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from kvlib.plan import StepPlan
from kvlib.sizes import KVShape, near
from kvlib.tensors.attention import contiguous_attention, reference_attention
from kvlib.tensors.kernels import paged_cpu, paged_triton
from kvlib.tensors.kernels.build import NoCompiler

Span = tuple[int, slice, int, int]
CHUNK_TOKENS = 512
KERNEL_CHUNK = 8


@dataclass(frozen=True)
class PagedContext:
    """Where the keys and values of a step's sequences are, on the device and on the host.

    `S` sequences, `M` blocks in the longest table.

    Attributes:
        host: the plan in plain integers.
        block_table: [S, M] int32, block ids in logical order, padded with the null block.
        context_lens: [S] int32, tokens each sequence has once the step is committed.
        query_start: [S + 1] int32, offsets of the sequences' new tokens.
    """

    host: StepPlan
    block_table: Tensor
    context_lens: Tensor
    query_start: Tensor
    _rows: dict[int | None, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _spans: dict[int | None, tuple[Span, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, host: StepPlan, device: torch.device) -> PagedContext:
        """Copies a plan's tables to a device, once for all layers.

        Raises:
            ValueError: a table has too few blocks for its sequence: a kernel would read beyond it.
        """
        for seq_id, blocks, length in zip(
            host.seq_ids, host.block_table, host.context_lens, strict=True
        ):
            if length > len(blocks) * host.block_size:
                raise ValueError(
                    f"the table of sequence {seq_id!r} has {len(blocks)} blocks of "
                    f"{host.block_size}, too short for its {length} tokens"
                )
        width = max(map(len, host.block_table), default=0)
        table = torch.tensor(host.block_table, dtype=torch.int32, device=device)
        lens = torch.tensor(host.context_lens, dtype=torch.int32, device=device)
        starts = torch.tensor(host.query_start, dtype=torch.int32, device=device)
        return cls(host, table.reshape(len(host.seq_ids), width), lens, starts)

    def spans(self, window: int | None) -> tuple[Span, ...]:
        """Returns for each sequence with new tokens its index, its rows, and what they see.

        Returns:
            For each `s`, the rows of the step, and the half-open range of positions `[first, end)`
            that any of its new tokens sees; made once for all layers.
        """
        if window not in self._spans:
            self._spans[window] = tuple(self._made_spans(window))
        return self._spans[window]

    def _made_spans(self, window: int | None) -> Iterator[Span]:
        starts = self.host.query_start
        for s, end in enumerate(self.host.context_lens):
            rows = slice(starts[s], starts[s + 1])
            num_queries = rows.stop - rows.start
            if num_queries:
                first = 0 if window is None else max(0, end - num_queries - window + 1)
                yield s, rows, first, end

    def rows_of(self, window: int | None) -> Tensor:
        """Returns for each new token its sequence and the positions it sees, [3, T] int32.

        The second row is the first position seen, the third one behind the last; padding tokens,
        which belong to no sequence, see nothing.
        """
        if window not in self._rows:
            starts, positions = self.host.query_start, self.host.positions
            owner = [
                s for s in range(len(self.host.seq_ids)) for _ in range(starts[s], starts[s + 1])
            ]
            end = [position + 1 for position in positions[: len(owner)]]
            first = [0 if window is None else max(0, e - window) for e in end]
            padding = [0] * (len(positions) - len(owner))
            made = [[*each, *padding] for each in (owner, first, end)]
            self._rows[window] = torch.tensor(
                made, dtype=torch.int32, device=self.block_table.device
            ).reshape(3, len(positions))
        return self._rows[window]

    def num_seen(self, window: int | None) -> int:
        """Returns how many tokens' keys the step reads, each sequence's once."""
        return sum(end - first for _, _, first, end in self.spans(window))


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


def choose_way(
    way: str | None, device: torch.device, dtype: torch.dtype, shape: KVShape, block_size: int
) -> str:
    """Returns the way to attend: the one that was named, or the fastest on this device.

    Where the CPU kernel cannot be compiled, `chunked` is taken, and a warning says so once.

    Raises:
        ValueError: there is no such way, or not on this device.
    """
    if way is None:
        return _fastest(device, dtype, shape, block_size)
    if way not in WAYS:
        raise ValueError(near(way, WAYS, "way to attend"))
    if way == "cpu":
        if device.type != "cpu":
            raise ValueError(f"the way 'cpu' attends on a CPU, this cache is on {device}")
        paged_cpu.kernel(dtype, 0, 0)
    if way == "triton":
        if device.type != "cuda" and not paged_triton.interpreted():
            raise ValueError(f"the way 'triton' attends on CUDA, this cache is on {device}")
        if reason := paged_triton.refusal(dtype, shape.head_dim, block_size):
            raise ValueError(f"the way 'triton' does not take this cache: {reason}")
    return way


def _fastest(device: torch.device, dtype: torch.dtype, shape: KVShape, block_size: int) -> str:
    if device.type == "cuda" and not paged_triton.refusal(dtype, shape.head_dim, block_size):
        return "triton" if find_spec("triton") else "gather"
    if device.type != "cpu" or dtype not in paged_cpu.TYPES:
        return "gather"
    try:
        paged_cpu.kernel(dtype, 0, 0)
    except NoCompiler as error:
        _say_once(str(error))
        return "chunked"
    return "cpu"


@cache
def _say_once(reason: str) -> None:
    warnings.warn(f"attending by chunks, without the CPU kernel: {reason}", stacklevel=4)


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
