"""Which idle content a cache gives up first: policies that keep a rank while a block is in use.

The policies of `kvlib.eviction` put a key that comes back at the end of their line. A cache of
prefixes needs more memory: a block that was in use, or had something built on it, comes back with
the rank it had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf

from kvlib.blocks import BlockPool
from kvlib.content import Content
from kvlib.frequency import Key

Rank = tuple[float, ...]


@dataclass(slots=True)
class Use:
    """What is remembered of one key. Times are a count of events, not seconds.

    Attributes:
        added: when it became known.
        used: when its last user left; `added` until then.
        uses: how many users have left.
        priority: of `PriorityPolicy`.
        seconds: how long the priority lasts after a use.
        until: when it ends, in the clock's seconds; of `FarthestNextUse` the next use.
    """

    added: int
    used: int
    uses: int = 0
    priority: int = 0
    seconds: float = inf
    until: float = inf


class RankedPolicy:
    """Gives up the key on show with the lowest rank; a key in use is hidden and keeps its rank.

    Every call takes a time that grows with the logarithm of the keys on show.

    Example:
        >>> policy = RankedLRU()
        >>> for key in "ab":
        ...     policy.add(key); policy.show(key)
        >>> policy.use("a"); policy.lowest()
        'b'
        >>> policy.hide("b"); policy.lowest()
        'a'
    """

    def __init__(self) -> None:
        self._now = 0
        self._uses: dict[Key, Use] = {}
        self._shown: dict[Key, Rank] = {}
        self._heap: list[tuple[Rank, int, Key]] = []

    def __len__(self) -> int:
        return len(self._uses)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._uses)

    def __contains__(self, key: Key) -> bool:
        return key in self._uses

    @property
    def shown(self) -> set[Key]:
        """The keys that may be given up."""
        return set(self._shown)

    def rank(self, use: Use) -> Rank:
        """Returns what is compared; the lowest is given up first."""
        raise NotImplementedError

    def add(self, key: Key, content: Content | None = None, index: int = 0) -> None:
        """Takes a key, hidden.

        Args:
            key: a block id, or whatever is given up as one.
            content: of the sequence that made it known.
            index: its place in that sequence.

        Raises:
            ValueError: the key is known already. Nothing changes.
        """
        if key in self._uses:
            raise ValueError(f"{key!r} is known already, among {len(self)} keys")
        self._now += 1
        self._uses[key] = Use(self._now, self._now)

    def use(self, key: Key) -> None:
        """Notes that a user of the key has left."""
        self._now += 1
        use = self._uses[key]
        use.used, use.uses = self._now, use.uses + 1
        if key in self._shown:
            self._offer(key)

    def show(self, key: Key) -> None:
        """Says that nobody needs the key any more."""
        if key not in self._shown:
            self._offer(key)

    def hide(self, key: Key) -> None:
        """Says that somebody needs the key; it keeps its rank."""
        self._shown.pop(key, None)

    def forget(self, key: Key) -> None:
        """Drops a key and all that is remembered of it."""
        del self._uses[key]
        self._shown.pop(key, None)

    def copy(self, key: Key, other: Key) -> None:
        """Takes a key, hidden, that inherits all that is remembered of another one."""
        self._now += 1
        self._uses[key] = replace(self._uses[other], added=self._now)

    def lowest(self) -> Key | None:
        """Returns the key to give up next; None if none is on show."""
        heap = self._heap
        while heap and self._shown.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][2] if heap else None

    def victims(self, pool: BlockPool, num_blocks: int) -> Iterator[Key]:
        """Yields keys until a pool has so many empty blocks, or none is left on show.

        Whoever asks must hide or forget each key before the next.
        """
        while pool.num_free - pool.num_kept < num_blocks:
            key = self.lowest()
            if key is None:
                return
            yield key

    def check(self) -> None:
        """Proves that only known keys are on show, each with its present rank in the heap.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        assert self._shown.keys() <= self._uses.keys(), "a key on show that is not known"
        ranks = {key: self.rank(self._uses[key]) for key in self._shown}
        assert ranks == self._shown, "a rank is out of date"
        offers = {(rank, key) for rank, _, key in self._heap}
        assert {(rank, key) for key, rank in ranks.items()} <= offers, "a key is never offered"

    def _offer(self, key: Key) -> None:
        use = self._uses[key]
        rank = self._shown[key] = self.rank(use)
        heap = self._heap
        # `added` differs between keys, so that keys are never compared.
        heappush(heap, (rank, use.added, key))
        if len(heap) > 64 + 4 * len(self._shown):
            heap[:] = [(rank, self._uses[each].added, each) for each, rank in self._shown.items()]
            heapify(heap)


class RankedLRU(RankedPolicy):
    """Gives up what was used longest ago."""

    def rank(self, use: Use) -> Rank:
        """Returns the time of the last use."""
        return (use.used,)


class RankedFIFO(RankedPolicy):
    """Gives up what has been known longest, however often it was used.

    A hash index adds the blocks of one prompt from its end on, so that the end is older.
    """

    def rank(self, use: Use) -> Rank:
        """Returns the time it became known."""
        return (use.added,)


class RankedLFU(RankedPolicy):
    """Gives up what was used least, and among equals what was used longest ago."""

    def rank(self, use: Use) -> Rank:
        """Returns the number of uses, then the time of the last."""
        return (use.uses, use.used)


class SLRUPolicy(RankedPolicy):
    """Gives up what was used once before what was used again; within each, the oldest use.

    The two segments of the first segmented LRU have fixed sizes; here, as in SGLang, what was used
    again stays protected for good.

    Source: SGLang 0.5.23, `mem_cache/evict_policy.py`.
    """

    def rank(self, use: Use) -> Rank:
        """Returns whether it was used again, then the time of the last use."""
        return (use.uses > 1, use.used)


class DropAll(RankedLRU):
    """Gives up everything that is idle as soon as anything must go.

    Args:
        margin: the share of all blocks that is kept empty as long as anything can go.

    Source: the continuous batching of transformers 5.24.0, where the margin is 0.15.
    """

    def __init__(self, margin: float = 0.0) -> None:
        super().__init__()
        self.margin = margin

    def victims(self, pool: BlockPool, num_blocks: int) -> Iterator[Key]:
        """Yields every key on show if the pool has too few empty blocks."""
        if pool.num_free - pool.num_kept < max(num_blocks, self.margin * pool.num_blocks):
            while (key := self.lowest()) is not None:
                yield key
