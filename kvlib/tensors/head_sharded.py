"""A paged cache cut by KV heads: each rank stores some heads of every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kvlib.plan import SeqId
from kvlib.sharding import head_shares
from kvlib.sizes import KVShape
from kvlib.tensors.agreement import plan_together, same_cache, same_queries
from kvlib.tensors.distributed import Ranks
from kvlib.tensors.paged import PagedKVCache, PagedPlan


class HeadShardedKVCache(PagedKVCache):
    """Each rank attends for its own heads, and all gather each other's outputs.

    Every rank runs the whole model, makes the same calls, and gets the same result. Here only the
    cache is cut; an engine with tensor parallelism cuts the weights too, and exchanges the output
    of the layer's projection in place of the heads' outputs.

    Heads that do not divide go unevenly: 3 heads on 2 ranks are 2 and 1. With more ranks than heads
    a head is stored by several ranks, which share out its queries.

    Args:
        shape: of the whole model; `model.kv_shape`.
        num_blocks: usable blocks, the same on every rank.
        block_size: tokens per block.
        ranks: the group.
        options: `way`, `dtype`, `device`, as for `PagedKVCache`.

    Raises:
        RanksDisagree: the ranks were given different shapes, sizes or dtypes.
        PeerLost: a rank did not come. In each case nothing is kept.
        TypeError, ValueError: as `PagedKVCache`.

    Attributes:
        share: the KV heads stored here; see `HeadShare`.
    """

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        block_size: int = 16,
        *,
        ranks: Ranks,
        way: str | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        same_cache(ranks, type(self), shape, num_blocks, block_size, dtype)
        self.ranks = ranks
        self.num_kv_heads = shape.num_kv_heads or 1
        self.shares = head_shares(self.num_kv_heads, ranks.size)
        self.share = self.shares[ranks.rank]
        if shape.num_kv_heads is not None:
            shape = replace(shape, num_kv_heads=len(self.share.kv_heads))
        super().__init__(shape, num_blocks, block_size, way=way, dtype=dtype, device=device)
        self._queries: str | None = None

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> PagedPlan:
        """Plans one step on every rank or on none; raises as `plan_together`."""
        return plan_together(self.ranks, super().plan, self.abort, self.length, new)

    def write(self, layer: int, k: Tensor, v: Tensor, plan: PagedPlan) -> None:
        """Stores this rank's heads of one layer's new keys and values, each [T, Hkv, D] whole."""
        mine = slice(self.share.kv_heads.start, self.share.kv_heads.stop)
        if k.shape[1] != self.num_kv_heads:
            raise ValueError(f"k must have all {self.num_kv_heads} KV heads, got {k.shape[1]}")
        super().write(layer, k[:, mine], v[:, mine], plan)

    def _num_new_heads(self) -> int:
        return self.num_kv_heads

    def attend(self, layer: int, q: Tensor, plan: PagedPlan) -> Tensor:
        """Attends for this rank's heads and gathers the others'.

        Args:
            layer: which layer; its new keys and values were written before.
            q: [T, Hq, D], all heads, packed as the plan says.
            plan: the open plan.

        Returns:
            [T, Hq, D], the same on every rank.

        Raises:
            RanksDisagree: at the first step, the ranks have different query heads.
            PeerLost: a rank did not bring its heads; abort the step.
        """
        self.ledger.require_open(plan.host)
        self._queries = same_queries(self.ranks, q, self._queries)
        spans = [share.q_heads(q.shape[1], self.num_kv_heads) for share in self.shares]
        mine = spans[self.ranks.rank]
        part = q.new_zeros(len(q), max(map(len, spans)), q.shape[2])
        if len(mine):
            queries = q[:, mine.start : mine.stop].contiguous()
            part[:, : len(mine)] = super().attend(layer, queries, plan)
        parts = self.ranks.gather(part)
        return torch.cat([p[:, : len(s)] for p, s in zip(parts, spans, strict=True)], dim=1)
