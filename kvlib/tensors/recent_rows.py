"""Rows of full precision, one a sequence, for the tokens that no full block holds yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from kvlib.plan import OutOfBlocks, SeqId
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.store import KVStore


class RecentRows:
    """Which sequence has which row of a store, and what is copied between rows.

    Args:
        store: its blocks are the rows.

    Attributes:
        table: [rows, 1] int32, the block table of a kernel: a row is one block.
    """

    def __init__(self, store: KVStore) -> None:
        self.store = store
        self._rows: dict[SeqId, int] = {}
        self._free = list(range(store.keys.shape[1]))[::-1]
        place = {"dtype": torch.int32, "device": store.keys.device}
        self.table = torch.arange(len(self._free), **place)[:, None]

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        """Keys and values, each [num_layers, rows, Hkv, block_size, D]."""
        return self.store.keys, self.store.values

    @property
    def num_free(self) -> int:
        """How many rows no sequence has."""
        return len(self._free)

    def row(self, seq_id: SeqId) -> int:
        """Returns the row of a sequence.

        Raises:
            KeyError: it has none.
        """
        return self._rows[seq_id]

    def require_free(self, seq_id: SeqId) -> None:
        """Refuses a sequence for which there is no row.

        Raises:
            OutOfBlocks: all rows are taken.
        """
        if not self._free:
            raise OutOfBlocks(
                f"sequence {seq_id!r} asked for a row of full precision, 0 free of"
                f" {len(self.table)}"
            )

    def take(self, seq_id: SeqId) -> None:
        """Gives a sequence without one a row; `require_free` was asked before."""
        self._rows[seq_id] = self._free.pop()

    def give_back(self, seq_id: SeqId) -> None:
        """Takes the row of a sequence back.

        Raises:
            KeyError: it has none.
        """
        self._free.append(self._rows.pop(seq_id))

    def copied(self, seq_ids: Iterable[SeqId]) -> list[Tensor]:
        """Returns copies of rows, made before anything changes, since they take memory.

        Sequences that are not live have none; the ledger refuses them next.
        """
        rows = [self._rows[s] for s in seq_ids if s in self._rows]
        return [side[:, rows] for side in self.sides]

    def put(self, over: Overwrites, seq_ids: Iterable[SeqId], copies: Sequence[Tensor]) -> None:
        """Fills the rows of sequences with what `copied` returned, in that order."""
        rows = [self._rows[s] for s in seq_ids]
        for side, new in zip(self.sides, copies, strict=True):
            over.put(side, (slice(None), rows), new)

    def check(self, seq_ids: Iterable[SeqId]) -> None:
        """Proves that these sequences and no others have one row each.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        assert self._rows.keys() == set(seq_ids), "a row without a sequence"
        taken = sorted([*self._rows.values(), *self._free])
        assert taken == list(range(len(self.table))), "a row is lost, or held twice"
