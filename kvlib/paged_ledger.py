"""Who owns which slot when sequences live in blocks: the bookkeeping of a paged cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvlib.block_table import BlockTable, Extension, num_blocks_for
from kvlib.blocks import BlockPool
from kvlib.open_plans import OpenPlans
from kvlib.plan import BlockCopy, OutOfBlocks, SeqId, SequenceTooLong, StepPlan
from kvlib.sizes import whole_number


class PagedLedger:
    """Gives sequences blocks as they grow, and takes whole blocks back.

    It is used as `ContiguousLedger` is: `plan`, then `commit` or `abort`. A plan takes the blocks
    it needs for all its sequences or none; `abort` gives them back. Forks share blocks, and the
    first to write into a shared one copies it: the plan's `copies` say which bytes go where, before
    anything is written.

    Args:
        num_blocks: usable blocks.
        block_size: tokens per block.
        window: if given, a query sees this many tokens, itself included, and `commit` gives back
            the blocks that lie wholly before the last `window` tokens.
        pool: a pool of `num_blocks` blocks to share with others, in place of one of its own.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or the pool has another
            number of blocks.

    Example:
        >>> ledger = PagedLedger(num_blocks=4, block_size=2)
        >>> ledger.add("a"); ledger.add("b")
        >>> step = ledger.plan({"a": [11, 12, 13], "b": [21]})
        >>> step.slot_mapping, step.block_table, step.context_lens
        ((0, 1, 2, 4), ((0, 1), (2, 4)), (3, 1))
        >>> ledger.commit(step); ledger.num_free
        1
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        window: int | None = None,
        pool: BlockPool | None = None,
    ) -> None:
        whole_number("block_size", block_size)
        if window is not None:
            whole_number("window", window)
        if pool is not None and pool.num_blocks != num_blocks:
            raise ValueError(f"the pool has {pool.num_blocks} blocks, num_blocks is {num_blocks!r}")
        self.pool = BlockPool(num_blocks) if pool is None else pool
        self._alone = pool is None
        self.block_size = block_size
        self.window = window
        self._tables: dict[SeqId, BlockTable] = {}
        self._lengths: dict[SeqId, int] = {}
        self._extensions: dict[SeqId, Extension] = {}
        self._open = OpenPlans()

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return self.pool.num_free

    @property
    def used_tokens(self) -> int:
        """Tokens stored, each counted for every sequence that has it; none behind a window."""
        return sum(n - self._tables[seq_id].first_position for seq_id, n in self._lengths.items())

    @property
    def reserved_tokens(self) -> int:
        """Slots that nobody else can use: held blocks, each once."""
        return self.pool.num_held * self.block_size

    @property
    def max_seq_len(self) -> int:
        """The longest sequence the pool could ever hold; with a window there is no such limit."""
        return self.pool.num_blocks * self.block_size if self.window is None else 2**40

    @property
    def seq_ids(self) -> tuple[SeqId, ...]:
        """The live sequences, in the order they were added."""
        return tuple(self._tables)

    def table(self, seq_id: SeqId) -> tuple[int, ...]:
        """Returns the blocks of a live sequence, in logical order.

        Raises:
            KeyError: no such sequence.
        """
        self._require_live(seq_id)
        return self._tables[seq_id].block_ids

    def length(self, seq_id: SeqId) -> int:
        """Returns how many tokens of a live sequence are stored.

        Raises:
            KeyError: no such sequence.
        """
        self._require_live(seq_id)
        return self._lengths[seq_id]

    def can_add(self) -> bool:
        """Answers yes: an empty sequence takes no block. `can_plan` asks about tokens."""
        return True

    def can_plan(self, new: Mapping[SeqId, int]) -> bool:
        """Answers whether these numbers of new tokens would find their blocks now.

        Raises:
            KeyError: a sequence is not live.
        """
        for seq_id in new:
            self._require_live(seq_id)
        return self._blocks_needed(new) <= self.num_free

    def add(self, seq_id: SeqId) -> None:
        """Takes a new, empty sequence.

        Raises:
            ValueError: the id is live already, or `None`, which marks padding. Nothing changes.
        """
        self._refuse_known(seq_id)
        self._tables[seq_id] = BlockTable(self.pool, self.block_size)
        self._lengths[seq_id] = 0

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> StepPlan:
        """Plans one step: takes blocks for all new tokens and says where each goes.

        Args:
            new: the new token ids of each sequence that takes part; may be empty for some.

        Returns:
            The plan, open until it is committed or aborted. A sequence has one open plan at most.

        Raises:
            KeyError: a sequence is not live.
            ValueError: a sequence is in an open plan already.
            SequenceTooLong: a sequence would not fit if it had the whole pool; with a window the
                same tokens may fit in several steps.
            OutOfBlocks: too few blocks are free. In each case nothing changes for any sequence.
        """
        counts = {seq_id: len(tokens) for seq_id, tokens in new.items()}
        self._refuse_impossible(counts)
        needed = self._blocks_needed(counts)
        if needed > self.num_free:
            raise OutOfBlocks(
                f"asked for {needed} blocks of {self.block_size}, {self.num_free} free of"
                f" {self.pool.num_blocks}"
            )
        leaving: dict[int, tuple[int, int]] = {}
        steps = {seq_id: self._extend(seq_id, n, leaving) for seq_id, n in counts.items()}
        self._extensions.update(steps)
        return self._plan_of(steps)

    def commit(self, plan: StepPlan) -> None:
        """Makes the plan's tokens part of their sequences.

        Raises:
            ValueError: the plan is not open (committed or aborted before). Nothing changes.
        """
        self._open.close(plan)
        for seq_id in plan.seq_ids:
            if seq_id is None:
                continue
            table, extension = self._tables[seq_id], self._extensions.pop(seq_id)
            table.settle(extension)
            self._lengths[seq_id] = extension.end
            if self.window is not None:
                table.drop_before(extension.end - self.window)

    def abort(self, plan: StepPlan) -> None:
        """Gives back every block the plan took; lengths and tables are what they were before it.

        Raises:
            ValueError: the plan is not open (committed or aborted before). Nothing changes.
        """
        self._open.close(plan)
        for seq_id in plan.seq_ids:
            if seq_id is not None:
                self._tables[seq_id].undo(self._extensions.pop(seq_id))

    def fork(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        """Gives `child` the parent's tokens by sharing its blocks; nothing is copied.

        Returns:
            An empty list, as there is nothing to copy now.

        Raises:
            KeyError, ValueError: as `length` and `add`, or the parent is in an open plan. Nothing
                changes.
        """
        self._open.refuse(parent)
        self._require_live(parent)
        self._refuse_known(child)
        self._tables[child] = self._tables[parent].fork()
        self._lengths[child] = self._lengths[parent]
        return []

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> list[BlockCopy]:
        """Lets each sequence continue the tokens of another, as beam search does, by sharing.

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
            self._require_live(seq_id)
            if source not in sources:
                raise ValueError(f"sequence {source!r} is continued but not itself reordered")
        new = {seq_id: self._tables[source].fork() for seq_id, source in sources.items()}
        lengths = {seq_id: self._lengths[source] for seq_id, source in sources.items()}
        for seq_id in sources:
            self._tables[seq_id].free()
        self._tables.update(new)
        self._lengths.update(lengths)
        return []

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens and gives back whole blocks behind them.

        Raises:
            KeyError: no such sequence.
            TypeError, ValueError: not a whole number in `[0, length]`, the sequence is in an open
                plan, or its window has moved past what is to be kept. Nothing changes.
        """
        self._open.refuse(seq_id)
        length = self.length(seq_id)
        table = self._tables[seq_id]
        needed = max(0, num_tokens - (self.window or length) + 1)
        if 0 < num_tokens < length and needed < table.first_position:
            raise ValueError(
                f"to go back to {num_tokens} tokens a window of {self.window} needs position"
                f" {needed}; those before {table.first_position} are gone"
            )
        table.truncate(num_tokens)
        self._lengths[seq_id] = num_tokens

    def free(self, seq_id: SeqId) -> None:
        """Gives the sequence's blocks back. Bytes are not cleared: lengths decide.

        Raises:
            KeyError: no such sequence, for instance because it was freed before.
            ValueError: the sequence is in an open plan. Nothing changes.
        """
        self._open.refuse(seq_id)
        self._require_live(seq_id)
        self._tables.pop(seq_id).free()
        del self._lengths[seq_id]

    def require_open(self, plan: StepPlan) -> None:
        """Refuses a plan whose slots may be somebody else's by now.

        Raises:
            ValueError: the plan is not open.
        """
        self._open.require(plan)

    def check(self) -> None:
        """Proves that every reference belongs to a table, and that tables are as long as needed.

        In a pool that was passed in, others may hold further references.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.pool.check()
        held = Counter(block_id for table in self._tables.values() for block_id in table.block_ids)
        held.update(e.replaced for e in self._extensions.values() if e.replaced is not None)
        for block_id in range(self.pool.num_blocks):
            others = self.pool.ref_count(block_id) - held[block_id]
            assert others == 0 or (others > 0 and not self._alone), (
                f"block {block_id}: {self.pool.ref_count(block_id)} references,"
                f" in {held[block_id]} tables"
            )
        assert self._open.seq_ids == self._extensions.keys(), "an extension without an open plan"
        for seq_id, table in self._tables.items():
            blocks = num_blocks_for(table.num_tokens, self.block_size)
            assert len(table.block_ids) == blocks, f"sequence {seq_id!r} has too many blocks"
            if seq_id not in self._extensions:
                assert table.num_tokens == self._lengths[seq_id], f"length of {seq_id!r}"

    def _blocks_needed(self, counts: Mapping[SeqId, int]) -> int:
        """Blocks that `plan` would take, counting how sharers of one block make room together."""
        leaving: dict[int, tuple[int, int]] = {}
        needed = 0
        for seq_id, num_tokens in counts.items():
            table = self._tables[seq_id]
            needed += table.blocks_needed(num_tokens, leaving)
            if num_tokens and table.must_copy(leaving):
                self._note_leaving(table, leaving)
        return needed

    def _extend(
        self, seq_id: SeqId, num_tokens: int, leaving: dict[int, tuple[int, int]]
    ) -> Extension:
        table = self._tables[seq_id]
        copies = num_tokens > 0 and table.must_copy(leaving)
        before = dict(leaving)
        if copies:
            self._note_leaving(table, leaving)
        return table.extend(num_tokens, before)

    @staticmethod
    def _note_leaving(table: BlockTable, leaving: dict[int, tuple[int, int]]) -> None:
        block_id, filled = table.block_ids[-1], table.num_tokens % table.block_size
        leavers, most = leaving.get(block_id, (0, 0))
        leaving[block_id] = (leavers + 1, max(most, filled))

    def _plan_of(self, steps: Mapping[SeqId, Extension]) -> StepPlan:
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for seq_id, step in steps.items():
            positions.extend(range(step.first, step.end))
            slots.extend(self._tables[seq_id].slots(step.first, step.end))
            starts.append(len(positions))
        tables = [self._tables[seq_id].block_ids for seq_id in steps]
        width = max(map(len, tables), default=0)
        null = (self.pool.null_block_id,)
        return StepPlan(
            seq_ids=tuple(steps),
            positions=tuple(positions),
            slot_mapping=tuple(slots),
            query_start=tuple(starts),
            context_lens=tuple(step.end for step in steps.values()),
            block_table=tuple(table + null * (width - len(table)) for table in tables),
            block_size=self.block_size,
            plan_id=self._open.open(steps),
            copies=tuple(copy for step in steps.values() for copy in step.copies),
        )

    def _refuse_impossible(self, counts: Mapping[SeqId, int]) -> None:
        for seq_id, num_tokens in counts.items():
            self._open.refuse(seq_id)
            begin = self.length(seq_id)
            kept_from = self._tables[seq_id].first_position
            end, most = begin + num_tokens, self.pool.num_blocks * self.block_size
            if end - kept_from > most:
                rule = "the whole pool" if self.window is None else "the whole pool: in pieces"
                raise SequenceTooLong(
                    f"sequence {seq_id!r} asked for {num_tokens} more tokens after {begin}:"
                    f" {end - kept_from} > {most}, {rule}"
                )

    def _refuse_known(self, seq_id: SeqId) -> None:
        if seq_id is None or seq_id in self._tables:
            raise ValueError(f"a new sequence needs a new id, got {seq_id!r}")

    def _require_live(self, seq_id: SeqId) -> None:
        if seq_id not in self._tables:
            raise KeyError(f"no sequence {seq_id!r}; {len(self._tables)} are live")
