"""Caches with one row of slots for each sequence, plain and aligned in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kvlib.ledger import ContiguousLedger
from kvlib.plan import SeqId
from kvlib.sizes import KVShape
from kvlib.tensors.caches import SlotCache
from kvlib.tensors.step import DevicePlan


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
