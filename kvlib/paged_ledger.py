"""Who owns which slot when sequences live in blocks: the bookkeeping of a paged cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kvlib.block_table import BlockTable, Extension, num_blocks_for
from kvlib.blocks import BlockPool
from kvlib.plan import BlockCopy, OutOfBlocks, SeqId, SequenceTooLong, StepPlan
from kvlib.sequences import SequenceLedger
from kvlib.sizes import whole_number


class PagedLedger(SequenceLedger):
    """Gives sequences blocks as they grow, and takes whole blocks back.

    It is used as `ContiguousLedger` is: `plan`, then `commit` or `abort`. A plan takes the blocks
    it needs for all its sequences or none; `abort` gives them back. `fork` and `reorder` share
    blocks and copy nothing. The first to write into a shared block copies it: the plan's `copies`
    say which bytes go where, before anything is written.

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
        super().__init__()
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
        self._extensions: dict[SeqId, Extension] = {}

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
    def max_seq_len(self) -> int | None:
        """The longest sequence the whole pool could hold; None if there is no such limit.

        There is none where a window's blocks leave one over for the next token.
        """
        window, most = self.window, self.pool.num_blocks
        bounded = window is None or most <= num_blocks_for(window, self.block_size)
        return most * self.block_size if bounded else None

    def table(self, seq_id: SeqId) -> tuple[int, ...]:
        """Returns the blocks of a live sequence, in logical order.

        Raises:
            KeyError: no such sequence.
        """
        self._require_live(seq_id)
        return self._tables[seq_id].block_ids

    def can_add(self) -> bool:
        """Answers yes: an empty sequence takes no block. `can_plan` asks about tokens."""
        return True

    def can_plan(self, new: Mapping[SeqId, int]) -> bool:
        """Answers whether these numbers of new tokens would find their blocks now.

        Raises:
            KeyError: a sequence is not live.
            TypeError, ValueError: a number is not a whole number of at least 0.
        """
        for seq_id, num_tokens in new.items():
            self._require_live(seq_id)
            whole_number(f"new tokens of sequence {seq_id!r}", num_tokens, least=0)
        return self._blocks_needed(new) <= self.num_free

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
            OutOfBlocks: too few blocks are free, one for each copy included.
            In each case nothing changes for any sequence.
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
        steps: dict[SeqId, Extension] = {}
        try:
            for seq_id, num_tokens in counts.items():
                steps[seq_id] = self._extend(seq_id, num_tokens, leaving)
            plan = self._plan_of(steps)
        except BaseException:
            for seq_id in reversed(steps):
                self._tables[seq_id].undo(steps[seq_id])
            raise
        self._extensions.update(steps)
        return plan

    def check(self) -> None:
        """Proves that every reference belongs to a table, and what each table can prove.

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
        self._open.check()
        assert self._open.seq_ids == self._extensions.keys(), "an extension without an open plan"
        assert self._tables.keys() == self._lengths.keys(), "a table without a length"
        for seq_id, table in self._tables.items():
            blocks = num_blocks_for(table.num_tokens, self.block_size)
            assert len(table.block_ids) <= blocks, f"sequence {seq_id!r} has too many blocks"
            table.check()
            step, length = self._extensions.get(seq_id), self._lengths[seq_id]
            stored = table.num_tokens if step is None else step.first
            assert stored == length, f"length of {seq_id!r}: {stored} stored, {length} counted"

    def _take(self, seq_id: SeqId) -> None:
        self._tables[seq_id] = BlockTable(self.pool, self.block_size)

    def _share(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        self._tables[child] = self._tables[parent].fork()
        return []

    def _exchange(self, sources: Mapping[SeqId, SeqId]) -> None:
        new: dict[SeqId, BlockTable] = {}
        try:
            for seq_id, source in sources.items():
                new[seq_id] = self._tables[source].fork()
        except BaseException:
            for table in new.values():
                table.free()
            raise
        for seq_id in sources:
            self._tables[seq_id].free()
        self._tables.update(new)

    def _cut(self, seq_id: SeqId, num_tokens: int) -> None:
        table, length = self._tables[seq_id], self._lengths[seq_id]
        needed = max(0, num_tokens - (self.window or length) + 1)
        if 0 < num_tokens < length and needed < table.first_position:
            raise ValueError(
                f"to go back to {num_tokens} tokens a window of {self.window} needs position"
                f" {needed}; those before {table.first_position} are gone"
            )
        table.truncate(num_tokens)

    def _give_back(self, seq_id: SeqId) -> None:
        self._tables.pop(seq_id).free()

    def _settle(self, seq_id: SeqId) -> None:
        table = self._tables[seq_id]
        table.settle(self._extensions.pop(seq_id))
        if self.window is not None:
            table.drop_before(self._lengths[seq_id] - self.window)

    def _undo(self, seq_id: SeqId) -> None:
        self._tables[seq_id].undo(self._extensions.pop(seq_id))

    def _slots(self, seq_id: SeqId, positions: range) -> Iterable[int]:
        return self._tables[seq_id].slots(positions.start, positions.stop)

    def _blocks_needed(self, counts: Mapping[SeqId, int]) -> int:
        """Blocks that `plan` would take, counting how sharers of one block make room together."""
        leaving: dict[int, tuple[int, int]] = {}
        needed = 0
        for seq_id, num_tokens in counts.items():
            needed += self._tables[seq_id].blocks_needed(num_tokens, leaving)
            self._note_leaving(seq_id, num_tokens, leaving)
        return needed

    def _extend(
        self, seq_id: SeqId, num_tokens: int, leaving: dict[int, tuple[int, int]]
    ) -> Extension:
        before = dict(leaving)
        self._note_leaving(seq_id, num_tokens, leaving)
        return self._tables[seq_id].extend(num_tokens, before)

    def _note_leaving(
        self, seq_id: SeqId, num_tokens: int, leaving: dict[int, tuple[int, int]]
    ) -> None:
        """Notes that a copy takes the place of the last block, if one does."""
        table = self._tables[seq_id]
        if num_tokens and table.must_copy(leaving):
            block_id, filled = table.block_ids[-1], table.num_tokens % table.block_size
            leavers, most = leaving.get(block_id, (0, 0))
            leaving[block_id] = (leavers + 1, max(most, filled))

    def _plan_of(self, steps: Mapping[SeqId, Extension]) -> StepPlan:
        tables = [self._tables[seq_id].block_ids for seq_id in steps]
        width = max(map(len, tables), default=0)
        null = (self.pool.null_block_id,)
        return self._step(
            {seq_id: range(step.first, step.end) for seq_id, step in steps.items()},
            [table + null * (width - len(table)) for table in tables],
            self.block_size,
            tuple(copy for step in steps.values() for copy in step.copies),
        )

    def _refuse_impossible(self, counts: Mapping[SeqId, int]) -> None:
        most = self.pool.num_blocks * self.block_size
        rule = "the whole pool" if self.max_seq_len else "the whole pool: in pieces"
        for seq_id, num_tokens in counts.items():
            self._open.refuse(seq_id)
            begin = self.length(seq_id)
            needed = begin + num_tokens - self._tables[seq_id].first_position
            if needed > most:
                raise SequenceTooLong(
                    f"sequence {seq_id!r} asked for {num_tokens} more tokens after {begin}:"
                    f" {needed} > {most}, {rule}"
                )
