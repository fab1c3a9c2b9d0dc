"""Memory that running requests hold tokens in: blocks, with shared prefixes where they begin alike.

`kvlib.memory.Memory` is what a scheduler asks of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kvlib.block_table import num_blocks_for
from kvlib.blocks import BlockPool
from kvlib.plan import OutOfBlocks
from kvlib.prefix import PrefixIndex
from kvlib.served import ServedRequest
from kvlib.sizes import whole_number


class KVMemory:
    """Blocks of one size; requests whose tokens begin alike share them, where there is an index.

    Args:
        num_blocks: usable blocks.
        block_size: tokens of each.
        index: makes the prefix index over the pool, such as `HashIndex`; None shares nothing.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1.

    Example:
        A second request with the same 5 tokens finds the first block of 4, and computes the rest:

        >>> from kvlib.content import TokenContent
        >>> from kvlib.hash_index import HashIndex
        >>> from kvlib.request import Request
        >>> memory = KVMemory(num_blocks=4, block_size=4, index=HashIndex)
        >>> a, b = (ServedRequest(Request(i, None, 5, 1), i, 0.0, 6, 6,
        ...                       TokenContent((1, 2, 3, 4, 5), 4), num_tokens=5)
        ...         for i in (0, 1))
        >>> memory.start(a, 5); a.num_computed = 5; memory.index(a)
        >>> memory.start(b, 5); b.num_cached, memory.num_free
        (4, 4)
    """

    grows = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        index: Callable[[BlockPool], PrefixIndex] | None = None,
    ) -> None:
        whole_number("block_size", block_size)
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.prefixes = index(self.pool) if index else None
        self._live: set[ServedRequest] = set()

    @property
    def size(self) -> int:
        """Tokens of all blocks."""
        return self.pool.num_blocks * self.block_size

    @property
    def most(self) -> int:
        """One request could hold all blocks."""
        return self.size

    @property
    def num_free(self) -> int:
        """Tokens of the blocks that no request holds, kept ones included."""
        return self.pool.num_free * self.block_size

    @property
    def num_held(self) -> int:
        """Tokens of the blocks that requests hold, each block counted once."""
        return self.pool.num_held * self.block_size

    @property
    def num_kept(self) -> int:
        """Tokens of free blocks whose content may be wanted again."""
        return self.pool.num_kept * self.block_size

    def rounded(self, num_tokens: int) -> int:
        """Returns the tokens of the blocks that hold `num_tokens`."""
        return num_blocks_for(num_tokens, self.block_size) * self.block_size

    def cached_tokens(self, job: ServedRequest) -> int:
        """Returns how many leading tokens are found; one at least is left to be computed."""
        return len(self._found(job)) * self.block_size

    def cost(self, job: ServedRequest, num_tokens: int) -> int:
        """Returns the free tokens that starting takes: new blocks, and found ones nobody holds.

        A found block that is only kept counts among the free ones until it is taken.
        """
        found = self._found(job)
        held = sum(1 for block_id in found if self.pool.ref_count(block_id))
        return self.rounded(num_tokens) - held * self.block_size

    def start(self, job: ServedRequest, num_tokens: int) -> None:
        """Gives a request room for `num_tokens` tokens, the first of them shared where found.

        Raises:
            ValueError: the request holds something already, or its content is in other blocks.
            OutOfBlocks: too few blocks are free. In each case nothing changes.
        """
        if job in self._live:
            raise ValueError(f"request {job.request.request_id} runs already")
        found = self._found(job)
        num_new = max(0, num_blocks_for(num_tokens, self.block_size) - len(found))
        idle = sum(1 for block_id in found if not self.pool.ref_count(block_id))
        if num_new + idle > self.pool.num_free:
            raise OutOfBlocks(
                f"asked for {num_new + idle} blocks, {idle} of them found idle,"
                f" {self.pool.num_free} free of {self.pool.num_blocks}"
            )
        self.pool.share(found)  # before anything is handed out, lest a found block be
        try:
            job.block_ids = found + self._take(num_new)
        except BaseException:
            self.pool.free(found)
            self._released(job, found)
            raise
        job.room = len(job.block_ids) * self.block_size
        job.num_cached = job.num_computed = len(found) * self.block_size
        job.num_indexed = len(found)
        self._live.add(job)

    def grow(self, job: ServedRequest, num_tokens: int) -> None:
        """Adds blocks until the request has room for `num_tokens` tokens.

        Raises:
            ValueError: the request holds nothing, for instance because it was stopped.
            OutOfBlocks: too few blocks are free. In each case nothing changes.
        """
        self._require_live(job)
        more = num_blocks_for(max(0, num_tokens - job.room), self.block_size)
        if more > 0:
            job.block_ids += self._take(more)
            job.room += more * self.block_size

    def index(self, job: ServedRequest) -> None:
        """Makes whole computed blocks known to the prefix index."""
        if self.prefixes is None or job.content is None:
            return
        whole = job.num_computed // self.block_size
        if whole > job.num_indexed:  # seldom: once a block
            whole = min(whole, job.content.num_blocks)
        if whole > job.num_indexed:
            self.prefixes.insert(job.content, job.block_ids[:whole], start=job.num_indexed)
            job.num_indexed = whole

    def stop(self, job: ServedRequest) -> None:
        """Takes all blocks of a request back; what the index knows stays until it is evicted.

        Raises:
            ValueError: the request holds nothing, for instance because it was stopped before.
        """
        self._require_live(job)
        blocks, known = job.block_ids, job.block_ids[: job.num_indexed]
        self._live.remove(job)
        self.pool.free(blocks)
        job.block_ids = []
        job.room = job.num_computed = job.num_indexed = 0
        self._released(job, known)  # last: a policy may be told of it, and fail

    def stranded(self, num_tokens: int) -> int:
        """Any block serves anybody."""
        return 0

    def check(self) -> None:
        """Proves that every reference to a block belongs to a running request.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.pool.check()
        if self.prefixes is not None:
            self.prefixes.check()
        held = Counter(block_id for job in self._live for block_id in job.block_ids)
        held.update(self.prefixes.held if self.prefixes else ())
        for block_id in range(self.pool.num_blocks):
            assert self.pool.ref_count(block_id) == held[block_id], f"references to {block_id}"
        for job in self._live:
            assert job.room == len(job.block_ids) * self.block_size, f"room of {job.order}"
            assert job.num_computed <= job.room, f"{job.order} computed more than it has room for"
            indexed = job.num_indexed * self.block_size
            assert indexed <= job.num_computed, f"{job.order}: {indexed} tokens indexed, not all"

    def _require_live(self, job: ServedRequest) -> None:
        if job not in self._live:
            raise ValueError(f"request {job.request.request_id} does not run")

    def _released(self, job: ServedRequest, block_ids: list[int]) -> None:
        if self.prefixes is not None and job.content is not None:
            self.prefixes.released(job.content, block_ids)

    def _found(self, job: ServedRequest) -> list[int]:
        if self.prefixes is None or job.content is None:
            return []
        if job.content.block_size != self.block_size:
            raise ValueError(
                f"request {job.request.request_id} tells its tokens in blocks of"
                f" {job.content.block_size}, the memory's hold {self.block_size}"
            )
        return self.prefixes.find(job.content, (job.num_tokens - 1) // self.block_size)

    def _take(self, num_blocks: int) -> list[int]:
        if self.prefixes is not None and num_blocks <= self.pool.num_free:
            self.prefixes.make_room(num_blocks)
        return self.pool.allocate(num_blocks)
