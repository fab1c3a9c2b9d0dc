"""Who owns which slot: the bookkeeping of contiguous sequences.

A contiguous cache is the simplest case of blocks: every sequence owns exactly one, and that block,
called a row, is `max_seq_len` slots long. Nothing here holds a byte of keys or values; the tensor
half asks this ledger where to write and what to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from kvlib.plan import BlockCopy, OutOfBlocks, SeqId, SequenceTooLong, StepPlan
from kvlib.sizes import whole_number


class ContiguousLedger:
    """Owns the rows of a contiguous cache: one row of `max_seq_len` slots for each sequence.

    A step is `plan`, then `commit` (the tokens are stored) or `abort` (nothing happened). Lengths
    advance at `commit` only, so a forward pass that fails in the middle leaves no trace here.

    Args:
        num_seqs: rows, that is sequences that can live at once.
        max_seq_len: slots per row, reserved in full for as long as the sequence lives.

    Raises:
        TypeError, ValueError: either is not a whole number of at least 1.

    Example:
        >>> ledger = ContiguousLedger(num_seqs=2, max_seq_len=4)
        >>> ledger.add("a"); ledger.add("b")
        >>> step = ledger.plan({"a": [11, 12], "b": [21]})
        >>> step.slot_mapping, step.positions, step.context_lens
        ((0, 1, 4), (0, 1, 0), (2, 1))
        >>> ledger.commit(step); ledger.length("a")
        2
    """

    def __init__(self, num_seqs: int, max_seq_len: int) -> None:
        whole_number("num_seqs", num_seqs)
        whole_number("max_seq_len", max_seq_len)
        self.num_seqs = num_seqs
        self.max_seq_len = max_seq_len
        self._free_rows = list(range(num_seqs - 1, -1, -1))
        self._rows: dict[SeqId, int] = {}
        self._lengths: dict[SeqId, int] = {}
        self._open: dict[SeqId, int] = {}
        self._plan_ids = count()

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
        return len(self._rows) * self.max_seq_len

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

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> StepPlan:
        """Plans one step: where each new token goes, for all layers.

        Args:
            new: the new token ids of each sequence that takes part; may be empty for some.

        Returns:
            The plan, open until it is committed or aborted. A sequence has one open plan at most.

        Raises:
            KeyError: a sequence is not live.
            ValueError: a sequence is in an open plan already.
            SequenceTooLong: a sequence would outgrow its row.
            In each case nothing changes for any sequence.
        """
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for seq_id, tokens in new.items():
            self._refuse_open(seq_id)
            begin, end = self.length(seq_id), self.length(seq_id) + len(tokens)
            if end > self.max_seq_len:
                raise SequenceTooLong(
                    f"sequence {seq_id!r} asked for {len(tokens)} more tokens after {begin}:"
                    f" {end} > max_seq_len {self.max_seq_len}"
                )
            first_slot = self.row(seq_id) * self.max_seq_len
            positions.extend(range(begin, end))
            slots.extend(range(first_slot + begin, first_slot + end))
            starts.append(len(positions))
        step = StepPlan(
            seq_ids=tuple(new),
            positions=tuple(positions),
            slot_mapping=tuple(slots),
            query_start=tuple(starts),
            context_lens=tuple(self._lengths[s] + len(t) for s, t in new.items()),
            block_table=tuple((self._rows[s],) for s in new),
            block_size=self.max_seq_len,
            plan_id=next(self._plan_ids),
        )
        self._open.update(dict.fromkeys(new, step.plan_id))
        return step

    def commit(self, plan: StepPlan) -> None:
        """Makes the plan's tokens part of their sequences.

        Raises:
            ValueError: the plan is not open (committed or aborted before). Nothing changes.
        """
        self._close(plan)
        for seq_id, context_len in zip(plan.seq_ids, plan.context_lens, strict=True):
            if seq_id is not None:
                self._lengths[seq_id] = context_len

    def abort(self, plan: StepPlan) -> None:
        """Forgets the plan; lengths stay what they were before it.

        Raises:
            ValueError: the plan is not open (committed or aborted before). Nothing changes.
        """
        self._close(plan)

    def fork(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        """Gives `child` a row with the parent's tokens; the caller copies the bytes it names.

        Raises:
            KeyError, ValueError, OutOfBlocks: as `length` and `add`; nothing changes.
        """
        self._refuse_open(parent)
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
            self._refuse_open(seq_id)
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
        """Keeps the first `num_tokens` tokens of a sequence; its row stays reserved.

        Raises:
            KeyError: no such sequence.
            ValueError: not in `[0, length]`, or the sequence is in an open plan. Nothing changes.
        """
        self._refuse_open(seq_id)
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
        self._refuse_open(seq_id)
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
        assert all(0 <= n <= self.max_seq_len for n in self._lengths.values()), "length out of row"
        assert self._open.keys() <= self._rows.keys(), "an open plan of a freed sequence"

    def _refuse_open(self, seq_id: SeqId) -> None:
        if seq_id in self._open:
            raise ValueError(f"sequence {seq_id!r} is in an open plan: commit or abort it first")

    def require_open(self, plan: StepPlan) -> None:
        """Refuses a plan that was committed or aborted: its slots may be somebody else's by now.

        Raises:
            ValueError: the plan is not open.
        """
        if any(s is not None and self._open.get(s) != plan.plan_id for s in plan.seq_ids):
            raise ValueError("this plan is not open: it was committed or aborted before")

    def _close(self, plan: StepPlan) -> None:
        self.require_open(plan)
        for seq_id in plan.seq_ids:
            self._open.pop(seq_id, None)
