"""The paged cache: many small blocks for each sequence, found through a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlib.blocks import BlockPool
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import SeqId, StepPlan
from kvlib.sizes import KVShape
from kvlib.tensors.caches import SlotCache
from kvlib.tensors.paged_attention import paged_attention
from kvlib.tensors.paged_context import PagedContext
from kvlib.tensors.step import DevicePlan
from kvlib.tensors.way_choice import choose_way


@dataclass(frozen=True)
class PagedPlan(DevicePlan):
    """A step plan on the device, with what a kernel needs to find the blocks.

    Attributes:
        context: tables and lengths; see `PagedContext`.
    """

    context: PagedContext

    @classmethod
    def of(cls, host: StepPlan, device: torch.device) -> PagedPlan:
        """Copies the index arrays of a plan to a device."""
        plain = DevicePlan.of(host, device)
        arrays = (plain.positions, plain.slot_mapping, plain.last_token)
        return cls(host, *arrays, PagedContext.of(host, device))


class PagedKVCache(SlotCache):
    """Sequences in blocks of a shared pool: no reservation, no holes, blocks shared until written.

    A sequence takes a block when it needs one. What it wastes is the free part of its last block.
    Forks share blocks; the first to write into a shared one copies it (copy-on-write).

    Args:
        shape: layers, KV heads and head size; `model.kv_shape` of a loaded model.
        num_blocks: usable blocks; one more is allocated for padding.
        block_size: tokens per block.
        window: if given, a query sees this many tokens, itself included, and blocks before the
            window are given back.
        way: how to attend, one of `kvlib.tensors.paged_attention.WAYS`; by default the fastest that
            this device has.
        pool: a pool of `num_blocks` blocks to share with others, in place of one of its own.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, there is no such way on
            this device, or the shape has no keys and values (MLA). Nothing is allocated.

    Example:
        >>> shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=2)
        >>> cache = PagedKVCache(shape, num_blocks=4, block_size=2, way="gather")
        >>> cache.add("a")
        >>> with cache.step({"a": [7, 8, 9]}) as plan:
        ...     k = torch.ones(3, 1, 2)
        ...     cache.write(0, k, k, plan)
        ...     cache.attend(0, k, plan)[-1].tolist()
        [[1.0, 1.0]]
        >>> cache.ledger.table("a"), cache.ledger.num_free
        ((0, 1), 2)
    """

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        block_size: int = 16,
        *,
        window: int | None = None,
        way: str | None = None,
        pool: BlockPool | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        ledger = PagedLedger(num_blocks, block_size, window=window, pool=pool)
        self.way = choose_way(way, torch.device(device), dtype, shape, block_size)
        super().__init__(shape, ledger, ledger.pool.num_blocks + 1, block_size, dtype, device)

    @property
    def max_seq_len(self) -> int | None:
        """The longest sequence the whole pool could hold; None if a window sets no limit."""
        return self.ledger.max_seq_len

    def add(self, seq_id: SeqId) -> None:
        """Takes a new, empty sequence, which holds no block yet; raises as `PagedLedger.add`."""
        self.ledger.add(seq_id)

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> PagedPlan:
        """Plans one step, and makes the copies that writing into shared blocks needs.

        Raises:
            KeyError, ValueError, SequenceTooLong, OutOfBlocks: as `PagedLedger.plan`. Nothing
                changes.
        """
        before = self.ledger.num_free
        plan = super().plan(new)
        self.counters.blocks_allocated += before - self.ledger.num_free
        return plan

    def _on_device(self, host: StepPlan) -> PagedPlan:
        plan = PagedPlan.of(host, self.device)
        self._copy(host.copies)
        return plan

    def attend(self, layer: int, q: Tensor, plan: PagedPlan) -> Tensor:
        """Attends the new queries to everything their sequences hold, new tokens included.

        Args:
            layer: which layer; its new keys and values were written before.
            q: [T, Hq, D], packed as the plan says.
            plan: the open plan.

        Returns:
            [T, Hq, D].

        Raises:
            ValueError: the plan is closed, the layer not written, or as `paged_attention`.
        """
        self._require_written(layer, plan)
        window = self.ledger.window
        if layer == 0:
            self._count_pairs(plan.host, window)
        keys, values = self.store.keys[layer], self.store.values[layer]
        out, _ = paged_attention(q, keys, values, plan.context, window=window, way=self.way)
        self._count_read(plan, num_layers=1)
        return out

    def count_step(self, plan: PagedPlan) -> None:
        """Counts the work of a whole step that ran where Python could not see it, in a graph."""
        self.count_layers(plan)
        self.counters.tokens_forwarded += plan.host.num_tokens

    def count_layers(self, plan: PagedPlan) -> None:
        """Counts what writing and attending in all layers of a step was, without doing it."""
        self._count_pairs(plan.host, self.ledger.window)
        self._count_read(plan, len(self.store.keys))
        self.counters.bytes_written += plan.host.num_tokens * self.store.bytes_per_token

    def _count_read(self, plan: PagedPlan, num_layers: int) -> None:
        per_token = self.store.bytes_per_token // len(self.store.keys) * num_layers
        self.counters.bytes_read += per_token * plan.context.num_seen(self.ledger.window)
        self.counters.kernels[self.way] += num_layers

    def check(self) -> None:
        """Proves the ledger's invariants and that the store has its shape."""
        super().check()
        shape = (self.ledger.pool.num_blocks + 1, self.ledger.block_size)
        assert (self.store.keys.shape[1], self.store.keys.shape[3]) == shape, "store is not ledger"
