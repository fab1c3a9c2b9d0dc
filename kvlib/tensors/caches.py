"""KV caches on real tensors: a ledger that says where, and a store that holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kvlib.ledger import ContiguousLedger
from kvlib.plan import BlockCopy, SeqId
from kvlib.sizes import KVShape
from kvlib.tensors.step import CacheBase, DevicePlan
from kvlib.tensors.store import KVStore


class LedgerCache(CacheBase):
    """What caches with a ledger and a store share: rows, lengths, and steps that leave no trace.

    Args:
        shape: layers, KV heads and head size; `model.kv_shape` of a loaded model.
        num_seqs: rows.
        row_len: slots the store has for each row.
        max_seq_len: tokens the ledger lets a sequence grow to.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or the shape has no
            keys and values (MLA). Nothing is allocated.
    """

    def __init__(
        self,
        shape: KVShape,
        num_seqs: int,
        row_len: int,
        max_seq_len: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        if shape.num_kv_heads is None:
            raise ValueError("this cache stores keys and values, an MLA shape has one latent")
        super().__init__(device)
        self.ledger = ContiguousLedger(num_seqs, max_seq_len)
        sizes = (shape.num_layers, num_seqs, row_len, shape.num_kv_heads, shape.head_dim)
        self.store = KVStore(*sizes, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, used or not."""
        return self.store.nbytes

    def add(self, seq_id: SeqId) -> None:
        """Reserves a row; raises as `ContiguousLedger.add`."""
        self.ledger.add(seq_id)
        self.counters.blocks_allocated += 1

    def free(self, seq_id: SeqId) -> None:
        """Gives the row back; raises as `ContiguousLedger.free`."""
        self.ledger.free(seq_id)

    def length(self, seq_id: SeqId) -> int:
        """Returns how many tokens of the sequence have been committed."""
        return self.ledger.length(seq_id)

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> DevicePlan:
        """Plans one step; raises as `ContiguousLedger.plan`."""
        return DevicePlan.of(self.ledger.plan(new), self.device)

    def commit(self, plan: DevicePlan) -> None:
        """Makes the plan's tokens part of their sequences."""
        self.ledger.commit(plan.host)

    def abort(self, plan: DevicePlan) -> None:
        """Forgets the plan; lengths stay what they were."""
        self.ledger.abort(plan.host)

    def check(self) -> None:
        """Proves the ledger's invariants."""
        self.ledger.check()


class ContiguousKVCache(LedgerCache):
    """One row of `max_seq_len` slots for each sequence, reserved from its first token on.

    Reads are views of the row, never copies. The price is the reservation: a row is held in full
    however short its sequence stays.

    Args:
        shape: layers, KV heads and head size; `model.kv_shape` of a loaded model.
        num_seqs: rows.
        max_seq_len: slots per row.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or the shape has no
            keys and values (MLA). Nothing is allocated.

    Example:
        >>> shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=2)
        >>> cache = ContiguousKVCache(shape, num_seqs=1, max_seq_len=4)
        >>> cache.add("a")
        >>> with cache.step({"a": [7]}) as plan:
        ...     cache.write(0, torch.ones(1, 1, 2), torch.ones(1, 1, 2), plan)
        ...     cache.attend(0, torch.ones(1, 1, 2), plan).tolist()
        [[[1.0, 1.0]]]
        >>> cache.length("a"), cache.nbytes
        (1, 64)
    """

    def __init__(
        self,
        shape: KVShape,
        num_seqs: int,
        max_seq_len: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(shape, num_seqs, max_seq_len, max_seq_len, dtype, device)

    @property
    def max_seq_len(self) -> int:
        """The longest sequence a row can hold."""
        return self.ledger.max_seq_len

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens; raises as `ContiguousLedger.truncate`."""
        self.ledger.truncate(seq_id, num_tokens)

    def fork(self, parent: SeqId, child: SeqId) -> None:
        """Gives `child` a copy of the parent's tokens; raises as `ContiguousLedger.fork`."""
        self._copy(self.ledger.fork(parent, child))
        self.counters.blocks_allocated += 1

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> None:
        """Lets each sequence continue another's tokens; raises as `ContiguousLedger.reorder`."""
        self._copy(self.ledger.reorder(sources))

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Stores one layer's new keys and values, each [T, Hkv, D].

        Raises:
            ValueError: the plan is closed, or shape, dtype or device do not fit. Nothing changes.
        """
        self.ledger.require_open(plan.host)
        self.store.write(layer, plan.slot_mapping, k, v)
        self.counters.bytes_written += k.nbytes + v.nbytes

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends the new queries to everything their sequences hold, new tokens included.

        Args:
            layer: which layer; its new keys and values were written before.
            q: [T, Hq, D], packed as the plan says.
            plan: the open plan.

        Returns:
            [T, Hq, D].
        """
        self.ledger.require_open(plan.host)
        if layer == 0:
            self._count_pairs(plan.host)
        rows_and_lengths = zip(plan.host.block_table, plan.host.context_lens, strict=True)
        views = [self.store.view(layer, blocks[0], n) for blocks, n in rows_and_lengths]
        return self._attend_each(q, plan.host, views)

    def check(self) -> None:
        """Proves the ledger's invariants and that the store has its shape."""
        super().check()
        shape = (self.ledger.num_seqs, self.ledger.max_seq_len)
        assert (self.store.keys.shape[1], self.store.keys.shape[3]) == shape, "store is not ledger"

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            self.counters.bytes_copied += self.store.copy_block(*copy)
