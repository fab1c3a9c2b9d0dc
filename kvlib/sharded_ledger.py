"""Who owns which slot on which rank, when the blocks of a sequence go round the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvlib.open_plans import OpenPlans
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import BlockCopy, OutOfBlocks, SeqId, SequenceTooLong, StepPlan
from kvlib.sharding import owner, tokens_held
from kvlib.sizes import whole_number


class ShardedLedger:
    """The ledgers of all ranks, kept by every rank: block `j` of a sequence is on rank `j % R`.

    Every rank makes the same calls, so every rank knows what the others hold and what a step takes
    from each, and refuses the same steps, without a message. It is used as `PagedLedger` is.

    Every sequence starts on rank 0, so sequences shorter than a round leave the last ranks empty.

    Args:
        num_blocks: usable blocks of each rank.
        block_size: tokens per block.
        num_ranks: the ranks, R.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1.

    Attributes:
        ledgers: one `PagedLedger` a rank; a sequence is in each, with the tokens it has there.

    Example:
        >>> ledger = ShardedLedger(num_blocks=2, block_size=4, num_ranks=2)
        >>> ledger.add("a"); step = ledger.plan({"a": range(10)}); ledger.commit(step)
        >>> ledger.length("a"), [each.length("a") for each in ledger.ledgers]
        (10, [6, 4])
        >>> step.block_table  # blocks 0 and 1 of rank 0, between them block 0 of rank 1
        ((0, 0, 1),)
    """

    def __init__(self, num_blocks: int, block_size: int, num_ranks: int) -> None:
        whole_number("num_ranks", num_ranks)
        self.ledgers = tuple(PagedLedger(num_blocks, block_size) for _ in range(num_ranks))
        self.block_size = block_size
        self._open = OpenPlans()
        self._parts: dict[int, tuple[StepPlan, ...]] = {}

    @property
    def num_ranks(self) -> int:
        """The ranks, R."""
        return len(self.ledgers)

    @property
    def seq_ids(self) -> tuple[SeqId, ...]:
        """The live sequences, in the order they were added."""
        return self.ledgers[0].seq_ids

    @property
    def open_plan_ids(self) -> frozenset[int]:
        """The plans that are neither committed nor aborted."""
        return frozenset(self._parts)

    @property
    def num_free(self) -> int:
        """Free blocks of the rank that has fewest."""
        return min(ledger.num_free for ledger in self.ledgers)

    @property
    def max_seq_len(self) -> int:
        """The longest sequence that all ranks together could hold."""
        return sum(ledger.max_seq_len for ledger in self.ledgers)

    def held(self, num_tokens: int, rank: int) -> int:
        """Returns how many of a sequence's first tokens lie on a rank."""
        return tokens_held(num_tokens, rank, self.num_ranks, self.block_size)

    def length(self, seq_id: SeqId) -> int:
        """Returns how many tokens of a live sequence are stored, on all ranks; KeyError if dead."""
        return sum(ledger.length(seq_id) for ledger in self.ledgers)

    def can_add(self) -> bool:
        """Answers yes: an empty sequence takes no block."""
        return True

    def add(self, seq_id: SeqId) -> None:
        """Takes a new, empty sequence; raises as `PagedLedger.add`."""
        self._on_all(lambda ledger: ledger.add(seq_id), lambda ledger: ledger.free(seq_id))

    def free(self, seq_id: SeqId) -> None:
        """Gives the sequence's blocks back on every rank; raises as `PagedLedger.free`."""
        for ledger in self.ledgers:
            ledger.free(seq_id)

    def fork(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        """Gives `child` the parent's tokens, in shared blocks; raises as `PagedLedger.fork`."""
        copies = self._on_all(
            lambda ledger: ledger.fork(parent, child), lambda ledger: ledger.free(child)
        )
        return [copy for of_rank in copies for copy in of_rank]

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> list[BlockCopy]:
        """Lets each sequence continue another's tokens; raises as `PagedLedger.reorder`."""
        return [copy for ledger in self.ledgers for copy in ledger.reorder(sources)]

    def reorder_copies(self, sources: Mapping[SeqId, SeqId]) -> list[BlockCopy]:
        """Returns the copies that `reorder` asks for; raises as `PagedLedger.reorder_copies`."""
        return [copy for ledger in self.ledgers for copy in ledger.reorder_copies(sources)]

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first tokens of a sequence; raises as `PagedLedger.truncate`."""
        length = self.length(seq_id)
        whole_number("num_tokens", num_tokens, least=0)
        if num_tokens > length:
            raise ValueError(
                f"truncate keeps 0 to {length} tokens of sequence {seq_id!r},"
                f" asked to keep {num_tokens}"
            )
        for rank, ledger in enumerate(self.ledgers):
            ledger.truncate(seq_id, self.held(num_tokens, rank))

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> StepPlan:
        """Plans one step on all ranks or on none.

        Args:
            new: the new token ids of each sequence that takes part; may be empty for some.

        Returns:
            The step as the model sees it. `block_table[s][j]` is a block of rank `j % R`, and a
            token's slot is one of its owner's store. What each rank does is in `parts`.

        Raises:
            KeyError, ValueError, SequenceTooLong, OutOfBlocks: as `PagedLedger.plan`, for the first
                rank that refuses. Nothing changes on any.
        """
        spans = {s: range(n := self.length(s), n + len(tokens)) for s, tokens in new.items()}
        parts: list[StepPlan] = []
        try:
            for rank, ledger in enumerate(self.ledgers):
                held = {
                    s: range(self.held(span.start, rank), self.held(span.stop, rank))
                    for s, span in spans.items()
                }
                parts.append(ledger.plan(held))
            step = self._whole(spans, parts)
        except (OutOfBlocks, SequenceTooLong) as error:
            self._abort(parts)
            raise type(error)(f"rank {len(parts)}: {error}") from None
        except BaseException:
            self._abort(parts)
            raise
        self._parts[step.plan_id] = tuple(parts)
        return step

    def parts(self, plan: StepPlan) -> tuple[StepPlan, ...]:
        """Returns what each rank does in an open step, in the positions of its own ledger.

        Raises:
            ValueError: the plan is not open.
        """
        self.require_open(plan)
        return self._parts[plan.plan_id]

    def require_open(self, plan: StepPlan) -> None:
        """Refuses a plan whose slots may be somebody else's by now, with a ValueError."""
        self._open.require(plan)

    def commit(self, plan: StepPlan) -> None:
        """Makes the plan's tokens part of their sequences; ValueError if it is not open."""
        for ledger, part in zip(self.ledgers, self.parts(plan), strict=True):
            ledger.commit(part)
        self._close(plan)

    def abort(self, plan: StepPlan) -> None:
        """Forgets the plan on every rank; ValueError if it is not open."""
        self._abort(self.parts(plan))
        self._close(plan)

    def check(self) -> None:
        """Proves each rank's invariants, and that every rank has what it should of a sequence.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self._open.check()
        assert self._parts.keys() == self._open.plan_ids, "a plan without its parts"
        for rank, ledger in enumerate(self.ledgers):
            ledger.check()
            assert ledger.seq_ids == self.seq_ids, f"rank {rank} has other sequences"
            for seq_id in self.seq_ids:
                right, there = self.held(self.length(seq_id), rank), ledger.length(seq_id)
                assert there == right, f"rank {rank} has {there} of {seq_id!r}, should have {right}"

    def _on_all(
        self, do: Callable[[PagedLedger], Any], undo: Callable[[PagedLedger], None]
    ) -> list[Any]:
        """Does something on every rank or, where one fails, on none; returns what each returned."""
        done: list[Any] = []
        try:
            for ledger in self.ledgers:
                done.append(do(ledger))
        except BaseException:
            for ledger in self.ledgers[: len(done)]:
                undo(ledger)
            raise
        return done

    def _close(self, plan: StepPlan) -> None:
        self._open.close(plan)
        del self._parts[plan.plan_id]

    def _abort(self, parts: Sequence[StepPlan]) -> None:
        for ledger, part in zip(self.ledgers, parts, strict=False):
            ledger.abort(part)

    def _whole(self, spans: Mapping[SeqId, range], parts: Sequence[StepPlan]) -> StepPlan:
        """Puts the parts of all ranks together, tokens and blocks in the order of the text."""
        slots = [iter(part.slot_mapping) for part in parts]
        positions = tuple(p for span in spans.values() for p in span)
        owners = [owner(p, self.num_ranks, self.block_size) for p in positions]
        starts = [0]
        for span in spans.values():
            starts.append(starts[-1] + len(span))
        tables = []
        for s, span in enumerate(spans.values()):
            blocks = range(-(-span.stop // self.block_size))
            where = [(parts[j % self.num_ranks], j // self.num_ranks) for j in blocks]
            tables.append(tuple(part.block_table[s][i] for part, i in where))
        width = max(map(len, tables), default=0)
        null = self.ledgers[0].pool.null_block_id
        context_lens = tuple(span.stop for span in spans.values())
        return StepPlan(
            seq_ids=tuple(spans),
            positions=positions,
            slot_mapping=tuple(next(slots[rank]) for rank in owners),
            query_start=tuple(starts),
            context_lens=context_lens,
            block_table=tuple(table + (null,) * (width - len(table)) for table in tables),
            block_size=self.block_size,
            plan_id=self._open.open(spans, context_lens),
        )
