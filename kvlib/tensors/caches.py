"""KV caches on real tensors: a ledger that says where, and a store that holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kvlib.ledger import ContiguousLedger
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import BlockCopy, SeqId
from kvlib.sizes import KVShape
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.step import CacheBase, DevicePlan
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
            return DevicePlan.of(host, self.device)
        except BaseException:  # no memory for the index arrays
            self.ledger.abort(host)
            raise

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
        """Refuses to attend to slots that hold what another sequence left there."""
        if plan.host.num_tokens and layer not in self._written.get(plan.host.plan_id, ()):
            self.store.view(layer, 0, 0)  # refuses one that does not exist
            raise ValueError(f"attend follows write in every layer: {layer} was not written")

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


class ContiguousKVCache(SlotCache):
    """One row of slots for each sequence, reserved from its first token on.

    Reads are views of the row, never copies. The price is the reservation: a row is held in full
    however short its sequence stays. Rows can also start short and grow; then the price is a copy
    of all that is stored, and for a moment the old and the new rows together.

    Args:
        shape: layers, KV heads and head size; `model.kv_shape` of a loaded model.
        num_seqs: rows. A sequence beyond them is refused; ask `can_add` to queue it instead.
        max_seq_len: the longest sequence a row can ever hold.
        initial_seq_len: slots per row at the start, `max_seq_len` by default.
        growth: the factor by which all rows grow, inside `plan`, when one of them is too short.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, the rows start longer
            than they may become, the factor is not above 1, or the shape has no keys and values
            (MLA). Nothing is allocated.

    Attributes:
        peak_nbytes: the most bytes that were allocated at once, old rows and new during growth.

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
        initial_seq_len: int | None = None,
        growth: float = 2.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        **store_options: int,
    ) -> None:
        ledger = ContiguousLedger(num_seqs, max_seq_len, initial_seq_len, growth)
        super().__init__(shape, ledger, num_seqs, ledger.row_len, dtype, device, **store_options)
        self.peak_nbytes = self.nbytes

    @property
    def row_len(self) -> int:
        """Slots per row now."""
        return self.ledger.row_len

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> DevicePlan:
        """Plans one step, growing the rows first if a sequence needs longer ones.

        Growth outgrows plans that are still open: they can only be aborted. If the memory for the
        longer rows is not to be had, nothing has changed.

        Raises:
            KeyError, ValueError, SequenceTooLong: as `ContiguousLedger.plan`. Nothing changes.
        """
        row_len = self.ledger.row_len_for(new)
        if row_len != self.row_len:
            longer = self._new_store(row_len)
            self.peak_nbytes = max(self.peak_nbytes, self.nbytes + longer.nbytes)
            for seq_id in self.ledger.seq_ids:
                row, length = self.ledger.row(seq_id), self.length(seq_id)
                copied = longer.copy_block(row, row, length, source=self.store)
                self.counters.bytes_copied += copied
            self.store = longer
        return super().plan(new)

    @property
    def max_seq_len(self) -> int:
        """The longest sequence a row can ever hold."""
        return self.ledger.max_seq_len

    def fork(self, parent: SeqId, child: SeqId) -> None:
        """Gives `child` a copy of the parent's tokens; raises as `ContiguousLedger.fork`."""
        super().fork(parent, child)
        self.counters.blocks_allocated += 1

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends the new queries to everything their sequences hold, new tokens included.

        Args:
            layer: which layer; its new keys and values were written before.
            q: [T, Hq, D], packed as the plan says.
            plan: the open plan.

        Returns:
            [T, Hq, D].

        Raises:
            ValueError: the plan is closed, the layer not written, or as `KVStore.require_queries`.
        """
        self.ledger.require_open(plan.host)
        self._require_written(layer, plan)
        self.store.require_queries(q, plan.host.num_tokens)
        if layer == 0:
            self._count_pairs(plan.host)
        rows_and_lengths = zip(plan.host.block_table, plan.host.context_lens, strict=True)
        views = [self.store.view(layer, blocks[0], n) for blocks, n in rows_and_lengths]
        return self._attend_each(q, plan.host, views)

    def check(self) -> None:
        """Proves the ledger's invariants and that the store has its shape."""
        super().check()
        self._check_rows()


class AlignedKVCache(ContiguousKVCache):
    """A contiguous cache in which each head's row of a token starts at an aligned address.

    Alignment is in **bytes**, of the row stride and of the base; the logical width stays what the
    model needs, so results are those of any other cache. It costs padding and buys whole vector
    loads and cache lines where `head_dim` is not a multiple of them; most models' are.

    Args:
        shape: as for `ContiguousKVCache`, as are `num_seqs`, `max_seq_len` and `options`.
        num_seqs: rows.
        max_seq_len: the longest sequence a row can ever hold.
        row_alignment_bytes: a power of two, at least the size of one number.
        options: `initial_seq_len`, `growth`, `dtype`, `device`.

    Raises:
        TypeError, ValueError: as `ContiguousKVCache`, or the alignment is no such power of two.
            Nothing is allocated.

    Example:
        A row of 3 float32 numbers takes 12 bytes, and 16 when it is aligned to 16:

        >>> cache = AlignedKVCache(KVShape(1, 1, 3), 1, 4, row_alignment_bytes=16)
        >>> cache.row_stride_bytes, cache.padding_share
        (16, 0.25)
    """

    def __init__(
        self,
        shape: KVShape,
        num_seqs: int,
        max_seq_len: int,
        *,
        row_alignment_bytes: int = 64,
        **options: object,
    ) -> None:
        super().__init__(
            shape, num_seqs, max_seq_len, row_alignment_bytes=row_alignment_bytes, **options
        )

    @property
    def row_stride_bytes(self) -> int:
        """Bytes from one row of D numbers to the next."""
        return self.store.keys.stride(3) * self.store.dtype.itemsize

    @property
    def padding_share(self) -> float:
        """Share of each row stride that holds padding."""
        used = self.store.keys.shape[4] * self.store.dtype.itemsize
        return 1 - used / self.row_stride_bytes
