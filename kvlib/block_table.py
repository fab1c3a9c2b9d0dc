"""Where a sequence's tokens are: its blocks in logical order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kvlib.blocks import BlockPool
from kvlib.plan import BlockCopy
from kvlib.sizes import whole_number

NOBODY: Mapping[int, tuple[int, int]] = MappingProxyType({})


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Returns how many blocks hold `num_tokens` tokens.

    Raises:
        ValueError: a negative number of tokens.

    Example:
        >>> [num_blocks_for(n, 16) for n in (0, 1, 16, 17)]
        [0, 1, 1, 2]
    """
    if num_tokens < 0:
        raise ValueError(f"num_tokens must be at least 0, got {num_tokens}")
    return -(-num_tokens // block_size)


class Extension(NamedTuple):
    """Room for tokens that are not final yet: see `BlockTable.extend`.

    Attributes:
        first: the position of the first new token.
        end: one behind the last.
        num_new: blocks added at the end of the table.
        copies: what must be copied before anything is written.
        replaced: the shared block whose place a copy took, or None.
    """

    first: int
    end: int
    num_new: int
    copies: tuple[BlockCopy, ...]
    replaced: int | None


class BlockTable:
    """The blocks of one sequence; logical block `i` holds positions `[i * size, (i + 1) * size)`.

    Blocks may be shared with other tables. Before a token is written into a shared block, the table
    takes a block of its own in its place and names the copy that the owner of the bytes must make:
    copy-on-write. Only a partly filled last block can need it, since full blocks are never written.
    A block that was marked counts as shared, with whoever may want its content again.

    Args:
        pool: where blocks come from.
        block_size: tokens per block.

    Raises:
        TypeError, ValueError: the block size is not a whole number of at least 1.

    Example:
        Blocks of 2. After a fork both tables share a half-filled block; the first to write copies:

        >>> pool = BlockPool(4)
        >>> a = BlockTable(pool, block_size=2)
        >>> _ = a.append(3); b = a.fork()
        >>> a.append(1).copies
        (BlockCopy(src=1, dst=2, num_tokens=1),)
        >>> b.append(1).copies, a.block_ids, b.block_ids
        ((), (0, 2), (0, 1))
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        whole_number("block_size", block_size)
        self.block_size = block_size
        self.num_tokens = 0
        self._pool = pool
        self._blocks: list[int] = []
        self._first_kept = 0
        self._pending: Extension | None = None

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The blocks in logical order; the null block where a window has moved on."""
        return tuple(self._blocks)

    @property
    def first_position(self) -> int:
        """The first position that still has a block; above 0 once a window has moved on."""
        return self._first_kept * self.block_size

    def slots(self, first: int, end: int) -> Iterator[int]:
        """Yields the physical slots of the positions `[first, end)`.

        Raises:
            ValueError: a position has no block, or none any more.
        """
        low, high = self.first_position, len(self._blocks) * self.block_size
        if not low <= first <= end <= high:
            raise ValueError(f"blocks hold positions [{low}, {high}), asked for [{first}, {end})")
        for position in range(first, end):
            block, offset = divmod(position, self.block_size)
            yield self._blocks[block] * self.block_size + offset

    def blocks_needed(
        self, num_tokens: int, leaving: Mapping[int, tuple[int, int]] = NOBODY
    ) -> int:
        """Returns how many blocks `extend` would take from the pool, a copy's included.

        Raises:
            TypeError, ValueError: not a whole number of at least 0.
        """
        whole_number("num_tokens", num_tokens, least=0)
        end = num_blocks_for(self.num_tokens + num_tokens, self.block_size)
        copy = num_tokens > 0 and self.must_copy(leaving)
        return max(end - len(self._blocks), 0) + copy

    def must_copy(self, leaving: Mapping[int, tuple[int, int]] = NOBODY) -> bool:
        """Answers whether the next token needs a copy of a shared block first."""
        if not self._filled:
            return False
        last = self._blocks[-1]
        leavers, most_filled = leaving.get(last, (0, 0))
        others = self._pool.ref_count(last) - 1 - leavers
        return others > 0 or most_filled > self._filled or self._pool.has_content(last)

    def extend(
        self,
        num_tokens: int,
        leaving: Mapping[int, tuple[int, int]] = NOBODY,
    ) -> Extension:
        """Makes room for further tokens; `settle` makes it final, `undo` takes it back.

        Until then a block that was replaced stays referenced, so that `undo` finds it, and nothing
        else can be done to the table.

        Args:
            num_tokens: how many.
            leaving: blocks that other tables give up in the same step, each with how many tables do
                and the most tokens one of them has in it. The last sharer need not copy, as long as
                it writes behind all that the others would find again.

        Raises:
            TypeError, ValueError: not a whole number of at least 0, or an extension is open.
            OutOfBlocks: the pool has too few blocks. In each case nothing changes.
        """
        self._refuse_open()
        fresh = self._pool.allocate(self.blocks_needed(num_tokens, leaving))
        copies: tuple[BlockCopy, ...] = ()
        replaced = None
        if num_tokens and self.must_copy(leaving):
            replaced, own = self._blocks[-1], fresh.pop(0)
            copies = (BlockCopy(replaced, own, self._filled),)
            self._blocks[-1] = own
        first, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        self._blocks.extend(fresh)
        self._pending = Extension(first, self.num_tokens, len(fresh), copies, replaced)
        return self._pending

    def settle(self, extension: Extension) -> None:
        """Makes the last extension final: gives up the block that a copy has replaced.

        Raises:
            ValueError: it is not the open extension of this table. Nothing changes.
        """
        self._require_open(extension)
        if extension.replaced is not None:
            self._pool.free([extension.replaced])
        self._pending = None

    def undo(self, extension: Extension) -> None:
        """Takes the last extension back; the table is what it was before.

        So is the pool, but for the content of free blocks that was lost when they were handed out.

        Raises:
            ValueError: it is not the open extension of this table. Nothing changes.
        """
        self._require_open(extension)
        keep = len(self._blocks) - extension.num_new
        self._pool.free(self._blocks[keep:])
        del self._blocks[keep:]
        if extension.replaced is not None:
            self._pool.free([self._blocks[-1]])
            self._blocks[-1] = extension.replaced
        self.num_tokens = extension.first
        self._pending = None

    def append(self, num_tokens: int) -> Extension:
        """Makes room for further tokens, for good; raises as `extend`."""
        extension = self.extend(num_tokens)
        self.settle(extension)
        return extension

    def fork(self) -> BlockTable:
        """Returns a table of the same tokens that shares every block.

        Raises:
            ValueError: an extension is open. Nothing changes.
        """
        self._refuse_open()
        child = BlockTable(self._pool, self.block_size)
        self._pool.share(self._blocks[self._first_kept :])
        child._blocks, child.num_tokens = list(self._blocks), self.num_tokens
        child._first_kept = self._first_kept
        return child

    def truncate(self, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens and gives back the whole blocks behind them.

        Raises:
            TypeError, ValueError: not a whole number within `[0, num_tokens]`, an extension is
                open, or a window has dropped what is to be kept. Nothing changes.
        """
        self._refuse_open()
        whole_number("num_tokens", num_tokens, least=0)
        if num_tokens > self.num_tokens:
            raise ValueError(f"keeps 0 to {self.num_tokens} tokens, asked to keep {num_tokens}")
        if 0 < num_tokens < self.first_position:
            raise ValueError(
                f"positions before {self.first_position} are gone, asked to keep {num_tokens}"
            )
        keep = num_blocks_for(num_tokens, self.block_size)
        self._pool.free(self._blocks[max(keep, self._first_kept) :])
        del self._blocks[keep:]
        self._first_kept = min(self._first_kept, len(self._blocks))
        self.num_tokens = num_tokens

    def drop_before(self, position: int) -> None:
        """Gives back blocks that lie wholly before a position; the null block takes their place.

        Args:
            position: the first that a later query can still see.

        Raises:
            ValueError: an extension is open. Nothing changes.
        """
        self._refuse_open()
        end = min(max(position, 0) // self.block_size, len(self._blocks))
        if end > self._first_kept:
            gone = slice(self._first_kept, end)
            self._pool.free(self._blocks[gone])
            self._blocks[gone] = [self._pool.null_block_id] * (end - self._first_kept)
            self._first_kept = end

    def free(self) -> None:
        """Gives all blocks back; the table is empty then."""
        self.truncate(0)

    def check(self) -> None:
        """Proves that the table is as long as its tokens need and holds each of its blocks.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        blocks, first, null = self._blocks, self._first_kept, self._pool.null_block_id
        needed = num_blocks_for(self.num_tokens, self.block_size)
        assert len(blocks) == needed, f"{len(blocks)} blocks for {self.num_tokens} tokens"
        assert 0 <= first <= needed, f"the first block kept is {first} of {needed}"
        assert blocks[:first] == [null] * first, f"before block {first} not all are given back"
        held = blocks[first:]
        assert len(set(held)) == len(held), f"a block stands twice in {held}"
        assert all(map(self._pool.ref_count, held)), f"a block that nobody holds in {held}"

    @property
    def _filled(self) -> int:
        """Tokens in a partly filled last block, 0 if it is full."""
        return self.num_tokens % self.block_size

    def _require_open(self, extension: Extension) -> None:
        # By identity: an equal one may be an earlier extension that was undone.
        if self._pending is None or extension is not self._pending:
            raise ValueError(
                f"only the open extension can be settled or undone: it is {self._pending},"
                f" asked for {extension}"
            )

    def _refuse_open(self) -> None:
        if self._pending is not None:
            raise ValueError(f"an extension is open, {self._pending}: settle or undo it first")
