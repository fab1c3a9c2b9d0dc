"""A policy that is told what is worth keeping, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from kvlib.content import Content
from kvlib.frequency import Key
from kvlib.retention import Rank, RankedPolicy, Use

DEFAULT_PRIORITY = 35


class Retain(NamedTuple):
    """How long content should stay: a priority from 0 to 100, and the seconds it lasts."""

    priority: int = DEFAULT_PRIORITY
    seconds: float = inf


class PriorityPolicy(RankedPolicy):
    """Gives up the lowest priority first, and among equals what was used longest ago.

    A priority may last for some seconds after each use; then the key has the default of 35.

    Args:
        retain: says for the block of a content at an index how long it should stay. It is asked
            once, when the block becomes known.
        clock: returns seconds; simulated ones will do.

    Source: `KvCacheRetentionConfig` of TensorRT-LLM.

    Example:
        The first block of every sequence stays a minute longer than others.

        >>> now = 0.0
        >>> policy = PriorityPolicy(lambda _, i: Retain(*(() if i else (80, 60))), lambda: now)
        >>> for i, key in enumerate("ab"):
        ...     policy.add(key, None, i); policy.use(key); policy.show(key)
        >>> policy.lowest()
        'b'
        >>> now = 60.0; policy.lowest()
        'a'
    """

    def __init__(
        self, retain: Callable[[Content | None, int], Retain], clock: Callable[[], float]
    ) -> None:
        super().__init__()
        self._retain, self._clock = retain, clock
        self._ends: list[tuple[float, int, Key]] = []

    def rank(self, use: Use) -> Rank:
        """Returns the priority, then the time of the last use."""
        return (use.priority, use.used)

    def add(self, key: Key, content: Content | None = None, index: int = 0) -> None:
        """Takes a key, hidden, with its priority.

        Raises:
            ValueError: the key is known already, or its priority is outside 0 to 100. Nothing
                changes.
        """
        priority, seconds = self._retain(content, index)
        if not 0 <= priority <= 100:
            raise ValueError(f"priorities are 0 to 100, got {priority!r}")
        super().add(key, content, index)
        use = self._uses[key]
        use.priority, use.seconds = priority, seconds

    def use(self, key: Key) -> None:
        """Notes that a user of the key has left; a priority that ends lasts from now on."""
        use = self._uses[key]
        if use.seconds < inf:
            use.until = self._clock() + use.seconds
            self._note_end(key)
        super().use(key)

    def copy(self, key: Key, other: Key) -> None:
        """Takes a key, hidden, that inherits a priority and when it ends."""
        super().copy(key, other)
        if self._uses[key].until < inf:
            self._note_end(key)

    def _note_end(self, key: Key) -> None:
        use = self._uses[key]
        heappush(self._ends, (use.until, use.added, key))
        if len(self._ends) > 64 + 4 * len(self._uses):  # mostly those of earlier uses
            ends = ((each.until, each.added, name) for name, each in self._uses.items())
            self._ends = [end for end in ends if end[0] < inf]
            heapify(self._ends)

    def lowest(self) -> Key | None:
        """Returns the key to give up next, after priorities have ended; None if there is none."""
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            until, added, key = heappop(self._ends)
            use = self._uses.get(key)
            if use is not None and (use.until, use.added) == (until, added):
                use.priority, use.seconds, use.until = DEFAULT_PRIORITY, inf, inf
                if key in self._shown:
                    self._offer(key)
        return super().lowest()

    def check(self) -> None:
        """Proves what every ranked policy does, and that each priority that ends has its end.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        ending = {(use.until, use.added) for use in self._uses.values() if use.until < inf}
        known = {end[:2] for end in self._ends}
        assert ending <= known, f"{len(ending - known)} priorities would never end"
