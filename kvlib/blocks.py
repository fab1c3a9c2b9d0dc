"""Blocks that sequences share: who holds each, and which one is reused next.

A block pool knows no tokens. It counts references, hands out the block whose loss costs least, and
takes blocks back. `kvlib.paged_ledger` gives blocks to sequences.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

from kvlib.plan import OutOfBlocks
from kvlib.sizes import whole_number


class BlockPool:
    """Hands out blocks by reference count; every operation takes the same time for each block.

    A block is *held* while its count is above 0, and *free* otherwise. A free block may still have
    **content** that somebody could want again: it was marked, and its owner left. `share` brings it
    back. Free blocks without content are handed out first, the one freed last before the others
    (it is the likeliest to be in a processor's cache); then those with content, the one freed
    longest ago first.

    Besides the `num_blocks` usable ones there is the null block. It takes the writes of padding,
    is held by nobody and counted nowhere.

    Args:
        num_blocks: usable blocks, with ids from 0.
        on_evict: told the id of each block whose content is lost: it is handed out or unmarked. It
            should not raise, and of the pool call `unmark` at most. A prefix index sets it later.

    Raises:
        TypeError, ValueError: the number is not a whole number of at least 1.

    Example:
        >>> pool = BlockPool(3)
        >>> a, b = pool.allocate(2)
        >>> pool.share([a]); pool.free([a, b])
        >>> pool.ref_count(a), pool.ref_count(b), pool.num_free
        (1, 0, 2)
    """

    def __init__(
        self, num_blocks: int, on_evict: Callable[[int], None] = lambda block_id: None
    ) -> None:
        whole_number("num_blocks", num_blocks)
        self.num_blocks = num_blocks
        self.on_evict = on_evict
        self._refs = [0] * num_blocks
        self._marked = [False] * num_blocks
        # Both are lines of free blocks; an OrderedDict also lets one leave from the middle.
        self._empty: OrderedDict[int, None] = OrderedDict.fromkeys(reversed(range(num_blocks)))
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def null_block_id(self) -> int:
        """The id of the null block, one behind the usable ones."""
        return self.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, with content or without."""
        return len(self._empty) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Free blocks that still have content."""
        return len(self._kept)

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds, each counted once however many share it."""
        return self.num_blocks - self.num_free

    def ref_count(self, block_id: int) -> int:
        """Returns how many hold the block.

        Raises:
            ValueError: there is no such block; the null block is none.
        """
        self._require(block_id)
        return self._refs[block_id]

    def held_once(self, block_ids: Sequence[int]) -> bool:
        """Answers whether these are different blocks, one at least, and each is held.

        It takes no step of Python for each block.
        """
        if not block_ids or set(map(type, block_ids)) != {int}:
            return False
        if min(block_ids) < 0 or max(block_ids) >= self.num_blocks:
            return False
        return len(set(block_ids)) == len(block_ids) and all(map(self._refs.__getitem__, block_ids))

    def has_content(self, block_id: int) -> bool:
        """Answers whether the block was marked, and what it held then is still there.

        Raises:
            ValueError: there is no such block; the null block is none.
        """
        self._require(block_id)
        return self._marked[block_id]

    def can_allocate(self, num_blocks: int) -> bool:
        """Answers whether that many blocks are to be had now.

        Raises:
            TypeError, ValueError: not a whole number of at least 0.
        """
        whole_number("num_blocks", num_blocks, least=0)
        return num_blocks <= self.num_free

    def allocate(self, num_blocks: int) -> list[int]:
        """Hands out blocks with a count of 1 each; those with content lose it.

        Raises:
            TypeError, ValueError: not a whole number of at least 0.
            OutOfBlocks: fewer are free. In each case nothing changes.
            Exception: what `on_evict` raised. Nobody holds a block more than before; those whose
                content it was told of have lost it.
        """
        whole_number("num_blocks", num_blocks, least=0)
        if num_blocks > self.num_free:
            raise OutOfBlocks(
                f"asked for {num_blocks} blocks, {self.num_free} free of {self.num_blocks}"
            )
        taken: list[int] = []
        try:
            for _ in range(num_blocks):
                if self._empty:
                    block_id, _ = self._empty.popitem()
                    taken.append(block_id)
                else:
                    block_id, _ = self._kept.popitem(last=False)
                    taken.append(block_id)
                    self._marked[block_id] = False
                    self.on_evict(block_id)
                self._refs[block_id] = 1
        except BaseException:
            for block_id in reversed(taken):
                self._refs[block_id] = 0
                self._empty[block_id] = None
            raise
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Adds one reference to each block; a free block with content comes back to life.

        Raises:
            ValueError: a block does not exist, or is free without content, so that there is nothing
                to share. Nothing changes.
        """
        block_ids = list(block_ids)
        for block_id in block_ids:
            self._require(block_id)
            if not self._refs[block_id] and block_id not in self._kept:
                raise ValueError(f"block {block_id} is free and empty: there is nothing to share")
        for block_id in block_ids:
            self._refs[block_id] += 1
            self._kept.pop(block_id, None)

    def free(self, block_ids: Iterable[int]) -> None:
        """Takes one reference from each block, the last of them first.

        Given a chain from its root to its tail, the tail joins the line of kept blocks first, so it
        is evicted before what it builds on.

        Raises:
            ValueError: a block does not exist, or would lose more references than it has: it was
                freed before. Nothing changes.
        """
        block_ids = list(block_ids)
        if not self.held_once(block_ids):
            self._require_references(block_ids)
        refs, marked = self._refs, self._marked
        for block_id in reversed(block_ids):
            refs[block_id] -= 1
            if not refs[block_id]:
                (self._kept if marked[block_id] else self._empty)[block_id] = None

    def mark(self, block_id: int) -> None:
        """Says that a held block has content worth keeping when nobody holds it any more.

        Raises:
            ValueError: there is no such block, or nobody holds it. Nothing changes.
        """
        self._require(block_id)
        if not self._refs[block_id]:
            raise ValueError(f"block {block_id} is free: only a held block can be marked")
        self._marked[block_id] = True

    def unmark(self, block_id: int) -> None:
        """Says that a block's content is gone; a free block joins the empty ones.

        Raises:
            ValueError: there is no such block. Nothing changes.
            Exception: what `on_evict` raised. The content is gone all the same.
        """
        self._require(block_id)
        try:
            if self._marked[block_id]:
                self._marked[block_id] = False
                self.on_evict(block_id)
        finally:
            if block_id in self._kept:
                del self._kept[block_id]
                self._empty[block_id] = None

    def check(self) -> None:
        """Proves that held, kept and empty blocks are all blocks, each in one of the three.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        empty, kept = self._empty.keys(), self._kept.keys()
        held = {block_id for block_id, refs in enumerate(self._refs) if refs}
        assert min(self._refs) >= 0, f"a negative reference count: {min(self._refs)}"
        assert not empty & kept, f"a block in both lines: {empty & kept}"
        assert not held & (empty | kept), f"a held block in a free line: {held}"
        assert held | empty | kept == set(range(self.num_blocks)), (
            f"a block is lost: {len(held)} held, {len(kept)} kept and {len(empty)} empty"
            f" of {self.num_blocks}"
        )
        marked = {block_id for block_id, content in enumerate(self._marked) if content}
        assert kept <= marked, f"kept without content: {kept - marked}"
        assert not empty & marked, f"content left behind: {empty & marked}"

    def _require_references(self, block_ids: list[int]) -> None:
        for block_id, times in Counter(block_ids).items():
            self._require(block_id)
            if times > self._refs[block_id]:
                raise ValueError(
                    f"block {block_id} has {self._refs[block_id]} references, asked to take"
                    f" {times}: freed before"
                )

    def _require(self, block_id: int) -> None:
        whole = isinstance(block_id, int) and not isinstance(block_id, bool)
        if not (whole and 0 <= block_id < self.num_blocks):
            raise ValueError(f"blocks are 0 to {self.num_blocks - 1}, asked for {block_id!r}")
