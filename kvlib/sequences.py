"""Which sequences live, how long each is, and what may be done to it: the same in every ledger.

A ledger adds where the slots are: it says how a sequence takes its place, shares it and gives it
back. When that is allowed, and what a refusal leaves as it was, is said here once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from kvlib.open_plans import OpenPlans
from kvlib.plan import BlockCopy, SeqId, StepPlan


class SequenceLedger(ABC):
    """What ledgers share: live sequences with their lengths, and steps that commit or abort.

    Lengths advance at `commit` only. A sequence in an open plan can be neither forked, reordered,
    truncated nor freed.

    Example:
        >>> from kvlib.ledger import ContiguousLedger
        >>> ledger = ContiguousLedger(num_seqs=2, max_seq_len=4)
        >>> ledger.add("a"); step = ledger.plan({"a": [11, 12]}); ledger.length("a")
        0
        >>> ledger.commit(step); ledger.truncate("a", 1); ledger.length("a"), ledger.seq_ids
        (1, ('a',))
    """

    def __init__(self) -> None:
        self._lengths: dict[SeqId, int] = {}
        self._open = OpenPlans()

    @property
    def seq_ids(self) -> tuple[SeqId, ...]:
        """The live sequences, in the order they were added."""
        return tuple(self._lengths)

    @property
    def open_plan_ids(self) -> frozenset[int]:
        """The plans that are neither committed nor aborted."""
        return self._open.plan_ids

    def length(self, seq_id: SeqId) -> int:
        """Returns how many tokens of a live sequence are stored.

        Raises:
            KeyError: no such sequence.
        """
        self._require_live(seq_id)
        return self._lengths[seq_id]

    def add(self, seq_id: SeqId) -> None:
        """Takes a new, empty sequence.

        Raises:
            ValueError: the id is live already, or `None`, which marks padding.
            OutOfBlocks: there is no place for it. In each case nothing changes.
        """
        self._refuse_known(seq_id)
        self._take(seq_id)
        self._lengths[seq_id] = 0

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
                self._settle(seq_id)

    def abort(self, plan: StepPlan) -> None:
        """Forgets the plan and gives back what it took; lengths stay what they were before it.

        Raises:
            ValueError: the plan is not open (committed or aborted before). Nothing changes.
        """
        self._open.close(plan, outgrown=True)
        # Backwards, so that what was taken last is the first to be found free again.
        for seq_id in reversed(plan.seq_ids):
            if seq_id is not None:
                self._undo(seq_id)

    def fork(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        """Gives `child` the parent's tokens.

        Returns:
            The copies of bytes that the caller must make now.

        Raises:
            KeyError, ValueError, OutOfBlocks: as `length` and `add`, or the parent is in an open
                plan. Nothing changes.
        """
        self._open.refuse(parent)
        self._require_live(parent)
        self._refuse_known(child)
        copies = self._share(parent, child)
        self._lengths[child] = self._lengths[parent]
        return copies

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> list[BlockCopy]:
        """Lets each sequence continue the tokens of another, as beam search does.

        Args:
            sources: for each sequence the one whose tokens it takes over; the sources are among
                the keys.

        Returns:
            The copies of bytes that the caller must make now.

        Raises:
            KeyError: a sequence is not live.
            ValueError: a source is not among the keys, or is in an open plan.
            In each case nothing changes.
        """
        copies = self.reorder_copies(sources)
        self._exchange(sources)
        self._lengths.update({s: self._lengths[source] for s, source in sources.items()})
        return copies

    def reorder_copies(self, sources: Mapping[SeqId, SeqId]) -> list[BlockCopy]:
        """Returns the copies that `reorder` asks for, and changes nothing; raises as `reorder`.

        For whoever makes them first, so that a copy that fails finds the sequences as they were.
        """
        for seq_id, source in sources.items():
            self._open.refuse(seq_id)
            self._require_live(seq_id)
            if source not in sources:
                raise ValueError(f"sequence {source!r} is continued but not itself reordered")
        return self._copies_between(sources)

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens of a sequence; 0 resets it, and it stays live.

        Raises:
            KeyError: no such sequence.
            TypeError: not a whole number.
            ValueError: not in `[0, length]`, the sequence is in an open plan, or its window has
                moved past what is to be kept. In each case nothing changes.
        """
        self._open.refuse(seq_id)
        length = self.length(seq_id)
        if not isinstance(num_tokens, int) or isinstance(num_tokens, bool):
            raise TypeError(f"num_tokens must be a whole number, got {num_tokens!r}")
        if not 0 <= num_tokens <= length:
            raise ValueError(
                f"truncate keeps 0 to {length} tokens of sequence {seq_id!r},"
                f" asked to keep {num_tokens}"
            )
        self._cut(seq_id, num_tokens)
        self._lengths[seq_id] = num_tokens

    def free(self, seq_id: SeqId) -> None:
        """Gives the sequence's place back. Bytes are not cleared: lengths, not values, decide.

        Raises:
            KeyError: no such sequence, for instance because it was freed before.
            ValueError: the sequence is in an open plan. Nothing changes.
        """
        self._open.refuse(seq_id)
        self._require_live(seq_id)
        self._give_back(seq_id)
        del self._lengths[seq_id]

    def require_open(self, plan: StepPlan) -> None:
        """Refuses a plan whose slots may be somebody else's by now.

        Raises:
            ValueError: the plan is not open, or older than the last growth.
        """
        self._open.require(plan)

    @abstractmethod
    def _take(self, seq_id: SeqId) -> None:
        """Finds the place of a new sequence, or raises `OutOfBlocks`."""

    @abstractmethod
    def _share(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        """Gives a new sequence the parent's tokens."""

    @abstractmethod
    def _exchange(self, sources: Mapping[SeqId, SeqId]) -> None:
        """Gives each sequence the tokens of its source."""

    def _copies_between(self, sources: Mapping[SeqId, SeqId]) -> list[BlockCopy]:
        """The copies that `_exchange` needs; where blocks are shared there are none."""
        return []

    @abstractmethod
    def _cut(self, seq_id: SeqId, num_tokens: int) -> None:
        """Gives back what lies behind the first tokens, or refuses and changes nothing."""

    @abstractmethod
    def _give_back(self, seq_id: SeqId) -> None:
        """Gives back all that a sequence holds."""

    @abstractmethod
    def _slots(self, seq_id: SeqId, positions: range) -> Iterable[int]:
        """Yields where the tokens of a sequence are."""

    def _settle(self, seq_id: SeqId) -> None:  # noqa: B027 - most have nothing to do
        """Makes a step final for one sequence, whose length has advanced."""

    def _undo(self, seq_id: SeqId) -> None:  # noqa: B027
        """Takes a step back for one sequence."""

    def _step(
        self,
        spans: Mapping[SeqId, range],
        tables: Sequence[tuple[int, ...]],
        block_size: int,
        copies: tuple[BlockCopy, ...] = (),
    ) -> StepPlan:
        """Opens the plan of a step in which each sequence gets the positions of its span."""
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for seq_id, span in spans.items():
            positions.extend(span)
            slots.extend(self._slots(seq_id, span))
            starts.append(len(positions))
        context_lens = tuple(span.stop for span in spans.values())
        return StepPlan(
            seq_ids=tuple(spans),
            positions=tuple(positions),
            slot_mapping=tuple(slots),
            query_start=tuple(starts),
            context_lens=context_lens,
            block_table=tuple(tables),
            block_size=block_size,
            plan_id=self._open.open(spans, context_lens),
            copies=copies,
        )

    def _refuse_known(self, seq_id: SeqId) -> None:
        if seq_id is None or seq_id in self._lengths:
            raise ValueError(f"a new sequence needs a new id, got {seq_id!r}")

    def _require_live(self, seq_id: SeqId) -> None:
        if seq_id not in self._lengths:
            raise KeyError(f"no sequence {seq_id!r}; {len(self._lengths)} are live")
