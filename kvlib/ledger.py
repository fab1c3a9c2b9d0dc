"""Who owns which slot: the bookkeeping of contiguous sequences.

A contiguous cache is the simplest case of blocks: every sequence owns exactly one, called a row,
and all rows are equally long. Nothing here holds a byte of keys or values; the tensor half asks
this ledger where to write and what to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from kvlib.plan import BlockCopy, OutOfBlocks, SeqId, SequenceTooLong, StepPlan
from kvlib.sequences import SequenceLedger
from kvlib.sizes import whole_number


def grown_len(row_len: int, needed: int, max_seq_len: int, growth: float) -> int:
    """Returns how long rows become so that `needed` tokens fit.

    Every growth multiplies the length by at least `growth`, so a row that grows alone to `n` tokens
    copies fewer than `n * growth / (growth - 1)` over its whole life. Adding a constant instead
    would copy a number of tokens that grows with the square. Rows that grow together with it are
    copied each time, however short their sequences are.

    Args:
        row_len: slots per row now.
        needed: the longest sequence after the step, at most `max_seq_len`.
        max_seq_len: rows never grow beyond it.
        growth: factor above 1.

    Example:
        >>> [grown_len(4, needed, 20, 2.0) for needed in (4, 5, 9, 17)]
        [4, 8, 16, 20]
    """
    while row_len < needed:
        # Rounded up: a factor that falls short of `growth` would break the bound.
        row_len = max(row_len + 1, math.ceil(min(max_seq_len, row_len * growth)))
    return row_len


class ContiguousLedger(SequenceLedger):
    """Owns the rows of a contiguous cache: one row of `row_len` slots for each sequence.

    A step is `plan`, then `commit` (the tokens are stored) or `abort` (nothing happened). Lengths
    advance at `commit` only, so a forward pass that fails in the middle leaves no trace here.

    Rows are as long as the longest sequence may become, from the start, unless `initial_seq_len`
    makes them shorter: then all of them grow together, inside `plan`, when a sequence needs it.

    `fork` copies the parent's row. `reorder` hands rows over: a source that k sequences continue
    costs k - 1 copies, into the rows of those that nobody continues.

    Args:
        num_seqs: rows, that is sequences that can live at once.
        max_seq_len: the longest sequence a row can ever hold.
        initial_seq_len: slots per row at the start, `max_seq_len` by default.
        growth: the factor by which rows grow, above 1.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, the initial length is
            above the maximum, or the factor is not above 1.

    Example:
        >>> ledger = ContiguousLedger(num_seqs=2, max_seq_len=4)
        >>> ledger.add("a"); ledger.add("b")
        >>> step = ledger.plan({"a": [11, 12], "b": [21]})
        >>> step.slot_mapping, step.positions, step.context_lens
        ((0, 1, 4), (0, 1, 0), (2, 1))
        >>> ledger.commit(step); ledger.length("a")
        2
    """

    def __init__(
        self,
        num_seqs: int,
        max_seq_len: int,
        initial_seq_len: int | None = None,
        growth: float = 2.0,
    ) -> None:
        super().__init__()
        whole_number("num_seqs", num_seqs)
        whole_number("max_seq_len", max_seq_len)
        initial_seq_len = max_seq_len if initial_seq_len is None else initial_seq_len
        whole_number("initial_seq_len", initial_seq_len)
        if initial_seq_len > max_seq_len:
            raise ValueError(
                f"rows start at most as long as they may become: initial_seq_len"
                f" {initial_seq_len} > max_seq_len {max_seq_len}"
            )
        if not (math.isfinite(growth) and growth > 1):
            raise ValueError(f"growth must be a finite factor above 1, got {growth!r}")
        self.num_seqs = num_seqs
        self.max_seq_len = max_seq_len
        self.row_len = initial_seq_len
        self.growth = growth
        self._free_rows = list(range(num_seqs - 1, -1, -1))
        self._rows: dict[SeqId, int] = {}

    @property
    def num_free(self) -> int:
        """Rows that no sequence owns."""
        return len(self._free_rows)

    @property
    def used_tokens(self) -> int:
        """Slots that hold a stored token."""
        return sum(self._lengths.values())

    @property
    def reserved_tokens(self) -> int:
        """Slots that nobody else can use: whole rows."""
        return len(self._rows) * self.row_len

    def row(self, seq_id: SeqId) -> int:
        """Returns the row that a live sequence owns.

        Raises:
            KeyError: no such sequence.
        """
        self._require_live(seq_id)
        return self._rows[seq_id]

    def can_add(self) -> bool:
        """Answers whether a further sequence would be admitted now."""
        return bool(self._free_rows)

    def row_len_for(self, new: Mapping[SeqId, Sequence[int]]) -> int:
        """Returns how long rows must be for a step, the present length if that is enough.

        A cache asks before it plans, so that it can find the memory first.

        Raises:
            KeyError, ValueError, SequenceTooLong: as `plan`. Nothing changes.
        """
        longest = 0
        for seq_id, tokens in new.items():
            self._open.refuse(seq_id)
            begin, end = self.length(seq_id), self.length(seq_id) + len(tokens)
            if end > self.max_seq_len:
                raise SequenceTooLong(
                    f"sequence {seq_id!r} asked for {len(tokens)} more tokens after {begin}:"
                    f" {end} > max_seq_len {self.max_seq_len}"
                )
            longest = max(longest, end)
        return grown_len(self.row_len, longest, self.max_seq_len, self.growth)

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> StepPlan:
        """Plans one step: where each new token goes, for all layers.

        Rows that are too short grow here, which outgrows the plans that are still open: their
        slots have moved, and they can only be aborted.

        Args:
            new: the new token ids of each sequence that takes part; may be empty for some.

        Returns:
            The plan, open until it is committed or aborted. A sequence has one open plan at most.

        Raises:
            KeyError: a sequence is not live.
            ValueError: a sequence is in an open plan already.
            SequenceTooLong: a sequence would outgrow `max_seq_len`.
            In each case nothing changes for any sequence.
        """
        row_len = self.row_len_for(new)
        if row_len != self.row_len:
            self.row_len = row_len
            self._open.outgrow()
        begins = {seq_id: self._lengths[seq_id] for seq_id in new}
        spans = {s: range(begin, begin + len(new[s])) for s, begin in begins.items()}
        return self._step(spans, [(self._rows[s],) for s in new], row_len)

    def check(self) -> None:
        """Proves that every row has exactly one owner: a sequence or the free list.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        owned = sorted(self._free_rows + list(self._rows.values()))
        assert owned == list(range(self.num_seqs)), f"rows lost or owned twice: {owned}"
        self._open.check()
        assert self._rows.keys() == self._lengths.keys(), "a row without a length"
        assert self._open.seq_ids <= self._rows.keys(), "an open plan of a freed sequence"
        self._check_lengths()

    def _check_lengths(self) -> None:
        assert self.row_len <= self.max_seq_len, "rows longer than they may become"
        assert all(0 <= n <= self.row_len for n in self._lengths.values()), "length out of row"

    def _slots(self, seq_id: SeqId, positions: range) -> Iterable[int]:
        first_slot = self._rows[seq_id] * self.row_len
        return range(first_slot + positions.start, first_slot + positions.stop)

    def _take(self, seq_id: SeqId) -> None:
        if not self._free_rows:
            raise OutOfBlocks(f"asked for 1 row, 0 free of {self.num_seqs}")
        self._rows[seq_id] = self._free_rows.pop()

    def _share(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        self._take(child)
        return self._copies(parent, self._rows[parent], self._rows[child])

    def _exchange(self, sources: Mapping[SeqId, SeqId]) -> None:
        self._rows.update(self._handed_over(sources))

    def _copies_between(self, sources: Mapping[SeqId, SeqId]) -> list[BlockCopy]:
        rows, copies = self._handed_over(sources), []
        for seq_id, source in sources.items():
            if rows[seq_id] != self._rows[source]:
                copies += self._copies(source, self._rows[source], rows[seq_id])
        return copies

    def _handed_over(self, sources: Mapping[SeqId, SeqId]) -> dict[SeqId, int]:
        """The rows of sequences that continue others.

        A source named once hands over its row and copies nothing. Named k times it costs k - 1
        copies, into the rows of the sequences nobody continues.
        """
        continued = set(sources.values())
        spare = [self._rows[seq_id] for seq_id in sources if seq_id not in continued]
        rows = {}
        for seq_id, source in sources.items():
            if source in continued:
                continued.discard(source)
                rows[seq_id] = self._rows[source]
            else:
                rows[seq_id] = spare.pop()
        return rows

    def _copies(self, seq_id: SeqId, src: int, dst: int) -> list[BlockCopy]:
        """The copy of a sequence's row into another, if there is anything in it."""
        filled = min(self._lengths[seq_id], self.row_len)
        return [BlockCopy(src, dst, filled)] if filled else []

    def _cut(self, seq_id: SeqId, num_tokens: int) -> None:
        """A row stays with its sequence, however short that is."""

    def _give_back(self, seq_id: SeqId) -> None:
        self._free_rows.append(self._rows.pop(seq_id))
