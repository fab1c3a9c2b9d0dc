"""Rows that hold a part of their sequences: what has gone, and goes where the sequence goes.

A ring gives up the oldest tokens, a budget those that attention ranks lowest. In both a sequence
may become longer than its row, and a number beside its length says what it has lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlib.ledger import ContiguousLedger
from kvlib.plan import BlockCopy, SeqId


class PartialRowLedger(ContiguousLedger):
    """Owns rows of `row_len` slots for sequences of any length.

    Lengths count all tokens that went through, as positions do. Which of them are still held is the
    subclass's to say; it keeps one number for each sequence in `_gone`, 0 as long as nothing is
    gone. A fork and a sequence that continues another one have lost the same.

    Args:
        num_seqs: rows, that is sequences that can live at once.
        row_len: slots of a row.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1.
    """

    def __init__(self, num_seqs: int, row_len: int) -> None:
        super().__init__(num_seqs, row_len)
        self.max_seq_len: int | None = None
        self._gone: dict[SeqId, int] = {}

    def row_len_for(self, new: Mapping[SeqId, Sequence[int]]) -> int:
        """Returns the row's length: a row never grows.

        Raises:
            KeyError, ValueError: as `plan`. Nothing changes.
        """
        for seq_id in new:
            self._open.refuse(seq_id)
            self._require_live(seq_id)
        return self.row_len

    def _take(self, seq_id: SeqId) -> None:
        super()._take(seq_id)
        self._gone[seq_id] = 0

    def _share(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        copies = super()._share(parent, child)
        self._gone[child] = self._gone[parent]
        return copies

    def _exchange(self, sources: Mapping[SeqId, SeqId]) -> None:
        super()._exchange(sources)
        self._gone.update({s: self._gone[source] for s, source in sources.items()})

    def _give_back(self, seq_id: SeqId) -> None:
        super()._give_back(seq_id)
        del self._gone[seq_id]

    def _check_lengths(self) -> None:
        assert self._gone.keys() == self._lengths.keys(), "a length without what is gone"
