"""KV caches on real tensors: a ledger that says where, and a store that holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kvlib.ledger import ContiguousLedger
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import BlockCopy, SeqId, StepPlan
from kvlib.sizes import KVShape
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.step import CacheBase, DevicePlan, not_written
from kvlib.tensors.store import KVStore


class LedgerCache(CacheBase):
    """What caches with a ledger and a store share: rows, lengths, and steps that leave no trace.

    Args:
        shape: layers, KV heads and head size; `model.kv_shape` of a loaded model.
        ledger: owns the slots.
        num_blocks: blocks (contiguous: rows) of the store.
        block_size: slots the store has for each of them.
        dtype: of the stored keys and values.
        device: where the bytes live.
        row_alignment_bytes: as for `KVStore`.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or the shape has no
            keys and values (MLA). Nothing is allocated.
    """

    def __init__(
        self,
        shape: KVShape,
        ledger: ContiguousLedger | PagedLedger,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        row_alignment_bytes: int | None = None,
    ) -> None:
        if shape.num_kv_heads is None:
            raise ValueError("this cache stores keys and values, an MLA shape has one latent")
        super().__init__(device)
        self.ledger = ledger
        self._store_options = {
            "num_layers": shape.num_layers,
            "num_blocks": num_blocks,
            "num_kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "dtype": dtype,
            "device": device,
            "row_alignment_bytes": row_alignment_bytes,
        }
        self.store = self._new_store(block_size)
        self._written: dict[int, set[int]] = {}  # by open plan: the layers that were written

    def _new_store(self, block_size: int) -> KVStore:
        return KVStore(block_size=block_size, **self._store_options)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, used or not."""
        return self.store.nbytes

    def can_add(self) -> bool:
        """Answers whether a further sequence would be admitted now; if not, the caller queues."""
        return self.ledger.can_add()

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
        """Plans one step; raises as `ContiguousLedger.plan`, and then nothing has changed."""
        host = self.ledger.plan(new)
        try:
            return self._on_device(host)
        except BaseException:  # no memory for the index arrays
            self.ledger.abort(host)
            raise

    def _on_device(self, host: StepPlan) -> DevicePlan:
        """What a plan is on the device; what it raises aborts the plan."""
        return DevicePlan.of(host, self.device)

    def commit(self, plan: DevicePlan) -> None:
        """Makes the plan's tokens part of their sequences.

        A layer that was not written gets zeros, not what somebody left in the slots.
        """
        self._fill_unwritten(plan)
        self.ledger.commit(plan.host)
        self._written.pop(plan.host.plan_id, None)

    def abort(self, plan: DevicePlan) -> None:
        """Forgets the plan; lengths stay what they were."""
        self.ledger.abort(plan.host)
        self._written.pop(plan.host.plan_id, None)

    def check(self) -> None:
        """Proves the invariants of the ledger and of the store."""
        self.ledger.check()
        self.store.check()
        self._check_noted(self._written)

    def note_written(self, plan: DevicePlan, layer: int | None = None) -> None:
        """Notes that a layer, or all of them, hold the plan's tokens: `write` does, and a kernel.

        A layer that is not noted cannot be attended to, and is filled with zeros at the end.
        """
        layers = range(len(self.store.keys)) if layer is None else (layer,)
        self._written.setdefault(plan.host.plan_id, set()).update(layers)

    def _require_written(self, layer: int, plan: DevicePlan) -> None:
        """Refuses a step that is over, and slots that hold what another sequence left there."""
        self.ledger.require_open(plan.host)
        if plan.host.num_tokens and layer not in self._written.get(plan.host.plan_id, ()):
            self.store.view(layer, 0, 0)  # refuses one that does not exist
            raise not_written(layer)

    def _fill_unwritten(self, plan: DevicePlan) -> None:
        self.ledger.require_open(plan.host)
        written = self._written.get(plan.host.plan_id, set())
        if not plan.host.num_tokens or len(written) == len(self.store.keys):
            return
        shape = plan.host.num_tokens, self._num_new_heads(), self.store.keys.shape[4]
        zeros = torch.zeros(shape, dtype=self.store.dtype, device=self.device)
        for layer in range(len(self.store.keys)):
            if layer not in written:
                self.write(layer, zeros, zeros, plan)

    def _num_new_heads(self) -> int:
        """KV heads of what `write` takes."""
        return self.store.keys.shape[2]

    def _check_rows(self) -> None:
        """The store has a row for each of the ledger's, as long."""
        shape = (self.ledger.num_seqs, self.ledger.row_len)
        assert (self.store.keys.shape[1], self.store.keys.shape[3]) == shape, "store is not ledger"

    def _check_noted(self, noted: Mapping[int, object]) -> None:
        """What is noted of steps is of open ones only."""
        over = noted.keys() - self.ledger.open_plan_ids
        assert not over, f"noted of {len(over)} steps that are over"


class SlotCache(LedgerCache):
    """What caches share whose ledger gives each token a slot of its own, for as long as it is kept.

    Such a cache can go back, fork and be reordered.
    """

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first tokens, 0 resets the sequence; raises as the ledger's `truncate`."""
        self.ledger.truncate(seq_id, num_tokens)

    def fork(self, parent: SeqId, child: SeqId) -> None:
        """Gives `child` the parent's tokens; raises as the ledger's `fork`.

        If a copy fails, nothing has changed.
        """
        copies = self.ledger.fork(parent, child)
        try:
            self._copy(copies)
        except BaseException:
            self.ledger.free(child)
            raise

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> None:
        """Lets each sequence continue another's tokens; raises as the ledger's `reorder`.

        If a copy fails, nothing has changed: what is written over is kept until the end.
        """
        copies = self.ledger.reorder_copies(sources)
        with Overwrites() as over:
            for _, dst, num_tokens in copies:
                for side in (self.store.keys, self.store.values):
                    over.keep(side, (slice(None), dst, slice(None), slice(num_tokens)))
            self._copy(copies)
            self.ledger.reorder(sources)

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Stores one layer's new keys and values, each [T, Hkv, D].

        Raises:
            ValueError: the plan is closed, or shape, dtype or device do not fit. Nothing changes.
        """
        self.ledger.require_open(plan.host)
        self.store.write(layer, plan.slot_mapping, k, v, planned=True)
        self.note_written(plan, layer)
        self.counters.bytes_written += k.nbytes + v.nbytes

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            self.counters.bytes_copied += self.store.copy_block(*copy)
