"""Who owns which slot: the bookkeeping of contiguous sequences.

A contiguous cache is the simplest case of blocks: every sequence owns exactly one, called a row,
and all rows are equally long. Nothing here holds a byte of keys or values; the tensor half asks
this ledger where to write and what to read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvlib.open_plans import OpenPlans
from kvlib.plan import BlockCopy, OutOfBlocks, SeqId, SequenceTooLong, StepPlan
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


class ContiguousLedger:
    """Owns the rows of a contiguous cache: one row of `row_len` slots for each sequence.

    A step is `plan`, then `commit` (the tokens are stored) or `abort` (nothing happened). Lengths
    advance at `commit` only, so a forward pass that fails in the middle leaves no trace here.

    Rows are as long as the longest sequence may become, from the start, unless `initial_seq_len`
    makes them shorter: then all of them grow together, inside `plan`, when a sequence needs it.

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
        self._lengths: dict[SeqId, int] = {}
        self._open = OpenPlans()

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

    @property
    def seq_ids(self) -> tuple[SeqId, ...]:
        """The live sequences, in the order they were added."""
        return tuple(self._rows)

    def row(self, seq_id: SeqId) -> int:
        """Returns the row that a live sequence owns.

        Raises:
            KeyError: no such sequence.
        """
        if seq_id not in self._rows:
            raise KeyError(f"no sequence {seq_id!r}; {len(self._rows)} are live")
        return self._rows[seq_id]

    def length(self, seq_id: SeqId) -> int:
        """Returns how many tokens of a live sequence are stored.

        Raises:
            KeyError: no such sequence.
        """
        self.row(seq_id)
        return self._lengths[seq_id]

    def can_add(self) -> bool:
        """Answers whether a further sequence would be admitted now."""
        return bool(self._free_rows)

    def add(self, seq_id: SeqId) -> None:
        """Reserves a row for a new, empty sequence.

        Raises:
            ValueError: the id is live already, or `None`, which marks padding. Nothing changes.
            OutOfBlocks: no row is free. Nothing changes.
        """
        if seq_id is None or seq_id in self._rows:
            raise ValueError(f"a new sequence needs a new id, got {seq_id!r}")
        if not self._free_rows:
            raise OutOfBlocks(f"asked for 1 row, 0 free of {self.num_seqs}")
        self._rows[seq_id] = self._free_rows.pop()
        self._lengths[seq_id] = 0

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
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for seq_id, tokens in new.items():
            begin, first_slot = self._lengths[seq_id], self._rows[seq_id] * row_len
            positions.extend(range(begin, begin + len(tokens)))
            slots.extend(range(first_slot + begin, first_slot + begin + len(tokens)))
            starts.append(len(positions))
        return StepPlan(
            seq_ids=tuple(new),
            positions=tuple(positions),
            slot_mapping=tuple(slots),
            query_start=tuple(starts),
            context_lens=tuple(self._lengths[s] + len(t) for s, t in new.items()),
            block_table=tuple((self._rows[s],) for s in new),
            block_size=row_len,
            plan_id=self._open.open(new),
        )

    def commit(self, plan: StepPlan) -> None:
        """Makes the plan's tokens part of their sequences.

        Raises:
            ValueError: the plan is not open (committed, aborted, or older than the last growth).
                Nothing changes.
        """
        self._open.close(plan)
        for seq_id, context_len in zip(plan.seq_ids, plan.context_lens, strict=True):
            if seq_id is not None:
                self._lengths[seq_id] = context_len

    def abort(self, plan: StepPlan) -> None:
        """Forgets the plan; lengths stay what they were before it.

        Raises:
            ValueError: the plan is not open (committed or aborted before). Nothing changes.
        """
        self._open.close(plan, outgrown=True)

    def fork(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        """Gives `child` a row with the parent's tokens; the caller copies the bytes it names.

        Raises:
            KeyError, ValueError, OutOfBlocks: as `length` and `add`; nothing changes.
        """
        self._open.refuse(parent)
        num_tokens = self.length(parent)
        self.add(child)
        self._lengths[child] = num_tokens
        return [BlockCopy(self._rows[parent], self._rows[child], num_tokens)] if num_tokens else []

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> list[BlockCopy]:
        """Lets each sequence continue the tokens of another, as beam search does.

        A source named once hands over its row and copies nothing; a source named k times costs
        k - 1 copies, into the rows of the sequences that nobody continues.

        Args:
            sources: for each sequence the one whose tokens it takes over; the sources are among
                the keys.

        Raises:
            KeyError: a sequence is not live.
            ValueError: a source is not among the keys, or is in an open plan.
            In each case nothing changes.
        """
        for seq_id, source in sources.items():
            self._open.refuse(seq_id)
            if source not in sources:
                raise ValueError(f"sequence {source!r} is continued but not itself reordered")
        old_rows = {seq_id: self.row(seq_id) for seq_id in sources}
        old_lengths = {seq_id: self._lengths[seq_id] for seq_id in sources}
        continued = set(sources.values())
        spare = [row for seq_id, row in old_rows.items() if seq_id not in continued]
        copies = []
        for seq_id, source in sources.items():
            if source in continued:
                continued.discard(source)
                self._rows[seq_id] = old_rows[source]
            else:
                self._rows[seq_id] = spare.pop()
                if old_lengths[source]:
                    copies.append(
                        BlockCopy(old_rows[source], self._rows[seq_id], old_lengths[source])
                    )
            self._lengths[seq_id] = old_lengths[source]
        return copies

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens of a sequence; 0 resets its row, which stays its own.

        Raises:
            KeyError: no such sequence.
            TypeError: not a whole number.
            ValueError: not in `[0, length]`, or the sequence is in an open plan. Nothing changes.
        """
        self._open.refuse(seq_id)
        if not isinstance(num_tokens, int) or isinstance(num_tokens, bool):
            raise TypeError(f"num_tokens must be a whole number, got {num_tokens!r}")
        if not 0 <= num_tokens <= self.length(seq_id):
            raise ValueError(
                f"truncate keeps 0 to {self.length(seq_id)} tokens of sequence {seq_id!r},"
                f" asked to keep {num_tokens}"
            )
        self._lengths[seq_id] = num_tokens

    def free(self, seq_id: SeqId) -> None:
        """Gives the sequence's row back. Bytes are not cleared: lengths, not values, decide.

        Raises:
            KeyError: no such sequence, for instance because it was freed before.
            ValueError: the sequence is in an open plan. Nothing changes.
        """
        self._open.refuse(seq_id)
        self._free_rows.append(self.row(seq_id))
        del self._rows[seq_id], self._lengths[seq_id]

    def check(self) -> None:
        """Proves that every row has exactly one owner: a sequence or the free list.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        owned = sorted(self._free_rows + list(self._rows.values()))
        assert owned == list(range(self.num_seqs)), f"rows lost or owned twice: {owned}"
        assert self._rows.keys() == self._lengths.keys(), "a row without a length"
        assert self.row_len <= self.max_seq_len, "rows longer than they may become"
        assert all(0 <= n <= self.row_len for n in self._lengths.values()), "length out of row"
        assert self._open.seq_ids <= self._rows.keys(), "an open plan of a freed sequence"

    def require_open(self, plan: StepPlan) -> None:
        """Refuses a plan whose slots may be somebody else's by now.

        Raises:
            ValueError: the plan is not open, or older than the last growth.
        """
        self._open.require(plan)
