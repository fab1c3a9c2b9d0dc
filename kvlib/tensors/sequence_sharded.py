"""A paged cache cut by tokens: each rank stores all heads of some blocks of every sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kvlib.plan import SeqId, StepPlan
from kvlib.sharded_ledger import ShardedLedger
from kvlib.sizes import KVShape
from kvlib.tensors.agreement import plan_together, same_cache, same_queries
from kvlib.tensors.attention_parts import merge
from kvlib.tensors.caches import SlotCache
from kvlib.tensors.distributed import Ranks
from kvlib.tensors.kernels import paged_cpu, paged_triton
from kvlib.tensors.paged_attention import KERNEL_CHUNK
from kvlib.tensors.seen_attention import attend_in_chunks
from kvlib.tensors.shard_plan import ShardPlan
from kvlib.tensors.way_choice import choose_way

KERNELS = {"cpu": paged_cpu.attend_rows, "triton": paged_triton.attend_rows}


class SequenceShardedKVCache(SlotCache):
    """Each rank attends to the tokens it holds; the partial results are merged by log-sum-exp.

    Block `j` of every sequence lies on rank `j % R`, so each rank's share grows with the text. A
    rank that holds nothing yet of a sequence contributes nothing: its log-sum-exp is -inf.

    Every rank runs the whole model, makes the same calls, and gets the same result.

    Args:
        shape: of the whole model; `model.kv_shape`.
        num_blocks: usable blocks of each rank.
        block_size: tokens per block.
        ranks: the group.
        way: "cpu" or "triton" reads the blocks where they lie, any other gathers them first; by
            default the fastest.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        RanksDisagree: the ranks were given different shapes, sizes or dtypes.
        PeerLost: a rank did not come. In each case nothing is kept.
        TypeError, ValueError: as `PagedKVCache`.
    """

    ledger: ShardedLedger

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
        self.way = choose_way(way, torch.device(device), dtype, shape, block_size)
        ledger = ShardedLedger(num_blocks, block_size, ranks.size)
        super().__init__(shape, ledger, num_blocks + 1, block_size, dtype, device)
        self._queries: str | None = None

    @property
    def max_seq_len(self) -> int:
        """The longest sequence that all ranks together could hold."""
        return self.ledger.max_seq_len

    def check(self) -> None:
        """Proves the invariants of all ranks' ledgers, and that the store here has its shape."""
        super().check()
        shape = (self.ledger.ledgers[0].pool.num_blocks + 1, self.ledger.block_size)
        assert (self.store.keys.shape[1], self.store.keys.shape[3]) == shape, "store is not ledger"

    def add(self, seq_id: SeqId) -> None:
        """Takes a new, empty sequence, which holds no block yet; raises as `ShardedLedger.add`."""
        self.ledger.add(seq_id)

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> ShardPlan:
        """Plans one step on every rank or on none; raises as `plan_together`."""
        return plan_together(self.ranks, super().plan, self.abort, self.length, new)

    def write(self, layer: int, k: Tensor, v: Tensor, plan: ShardPlan) -> None:
        """Stores one layer's keys and values of the new tokens that belong here; [T, Hkv, D]."""
        self.ledger.require_open(plan.host)
        if len(k) != plan.host.num_tokens or k.shape != v.shape:
            raise ValueError(
                f"the plan has {plan.host.num_tokens} new tokens, got {tuple(k.shape)}"
            )
        k, v = k[plan.mine], v[plan.mine]
        self.store.write(layer, plan.slots, k, v, planned=True)
        self.note_written(plan, layer)
        self.counters.bytes_written += k.nbytes + v.nbytes

    def attend(self, layer: int, q: Tensor, plan: ShardPlan) -> Tensor:
        """Attends to the tokens held here, and merges what every rank found.

        Args:
            layer: which layer; its new keys and values were written before.
            q: [T, Hq, D], packed as the plan says.
            plan: the open plan.

        Returns:
            [T, Hq, D], the same on every rank.

        Raises:
            RanksDisagree: at the first step, the ranks have different query heads.
            PeerLost: a rank did not bring its part; abort the step.
            ValueError: the plan is closed, the layer not written, or as `KVStore.require_queries`.
        """
        self._require_written(layer, plan)
        self.store.require_queries(q, plan.host.num_tokens)
        if layer == 0:
            self._count_pairs(plan.host)
        self._queries = same_queries(self.ranks, q, self._queries)
        out, lse = self._attend_here(layer, q, plan)
        parts = self.ranks.gather(torch.cat([out, lse[..., None]], dim=-1))
        whole, _ = merge([(part[..., :-1], part[..., -1]) for part in parts])
        return whole.to(q.dtype)

    def _attend_here(self, layer: int, q: Tensor, plan: ShardPlan) -> tuple[Tensor, Tensor]:
        """Attends to the tokens held here only.

        Returns:
            Output [T, Hq, D] and log-sum-exp [T, Hq], both float32; zeros and -inf where a query
            sees nothing of what is held here.
        """
        keys, values = self.store.keys[layer], self.store.values[layer]
        out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)
        few = []
        starts = plan.host.query_start
        for s, held in enumerate(plan.part.context_lens):
            rows = slice(starts[s], starts[s + 1])
            if not held or rows.start == rows.stop:
                continue
            self.counters.bytes_read += held * self.store.bytes_per_token // len(self.store.keys)
            if self.way in KERNELS and rows.stop - rows.start <= KERNEL_CHUNK:
                few.extend(range(rows.start, rows.stop))
                continue
            seen = plan.rows[2, rows]
            out[rows], lse[rows] = attend_in_chunks(
                q[rows], keys, values, plan.table[s], held, seen
            )
            self.counters.kernels["partial"] += 1
        if few:
            index = torch.tensor(few, device=q.device)
            chosen = plan.rows[:, index].contiguous()
            here, weight = KERNELS[self.way](q[index], keys, values, plan.table, chosen)
            out[index], lse[index] = here.float(), weight
            self.counters.kernels[self.way] += 1
        return out, lse

    def _on_device(self, host: StepPlan) -> ShardPlan:
        plan = ShardPlan.of(host, self.ledger, self.ranks.rank, self.device)
        self._copy(plan.part.copies)
        return plan
