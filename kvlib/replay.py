"""What an eviction policy is worth: accesses replayed and hits counted, never assumed.

Belady's policy, which knows what comes, stands beside the others as the bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from kvlib.eviction import FIFOPolicy
from kvlib.frequency import Key
from kvlib.sizes import near, whole_number


@dataclass(frozen=True)
class Replay:
    """What a replay counted.

    Attributes:
        hits: accesses to a key that was held.
        misses: all the others; each put its key into the cache.
        evicted: the keys given up, in order.
    """

    hits: int
    misses: int
    evicted: tuple[Key, ...]

    @property
    def hit_rate(self) -> float:
        """Hits as a share of all accesses."""
        return self.hits / (self.hits + self.misses)


def replay(policy: FIFOPolicy, accesses: Sequence[Key], capacity: int) -> Replay:
    """Counts the hits of a cache that takes in every key it misses.

    Args:
        policy: empty; it is filled, and after the call holds what the cache would hold.
        accesses: the keys asked for, in order.
        capacity: how many keys the cache can hold.

    Raises:
        TypeError, ValueError: the capacity is not a whole number of at least 1, there is no access,
            or the policy holds keys already. Nothing changes.

    Example:
        Three keys in turn through two places: each is evicted just before it is wanted again.

        >>> from kvlib.eviction import LRUPolicy
        >>> replay(LRUPolicy(), "abcabc", capacity=2)
        Replay(hits=0, misses=6, evicted=('a', 'b', 'c', 'a'))
        >>> replay(BeladyPolicy("abcabc"), "abcabc", capacity=2).hits
        2
    """
    whole_number("capacity", capacity)
    if not accesses:
        raise ValueError("a replay needs at least 1 access, got 0")
    if len(policy):
        raise ValueError(f"a replay starts with an empty policy, this one holds {len(policy)} keys")
    hits, evicted = 0, []
    for key in accesses:
        if key in policy:
            policy.touch(key)
            hits += 1
            continue
        if len(policy) == capacity:
            evicted.append(policy.evict())
        policy.add(key)
    return Replay(hits, len(accesses) - hits, tuple(evicted))


class BeladyPolicy(FIFOPolicy):
    """Evicts the key whose next use is farthest away: no policy has more hits, and none can know.

    It is told all accesses beforehand, so it is a bound and no policy to run. Every `add` and every
    `touch` is the next access. `evict` looks at every key.

    Args:
        accesses: all keys, in the order in which they will be added or touched.

    Source: Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.

    Example:
        >>> policy = BeladyPolicy("abcab")
        >>> policy.add("a"); policy.add("b"); policy.evict()
        'b'
    """

    def __init__(self, accesses: Sequence[Key]) -> None:
        super().__init__()
        self._accesses = tuple(accesses)
        self._now = 0
        self._uses: dict[Key, deque[int]] = {}
        for time, key in enumerate(self._accesses):
            self._uses.setdefault(key, deque()).append(time)

    def add(self, key: Key) -> None:
        """Takes a key, as the next access.

        Raises:
            ValueError: the key is held already, or another access was announced. Nothing changes.
        """
        self._expect(key)
        super().add(key)
        self._pass(key)

    def touch(self, key: Key) -> None:
        """Notes one use of a key, as the next access.

        Raises:
            ValueError: the key is not held, or another access was announced. Nothing changes.
        """
        self._expect(key)
        super().touch(key)
        self._pass(key)

    def _expect(self, key: Key) -> None:
        announced = self._accesses[self._now : self._now + 1]
        if announced != (key,):
            said = repr(announced[0]) if announced else f"the end after {self._now} accesses"
            raise ValueError(f"the next access was announced as {said}, got {key!r}")

    def _pass(self, key: Key) -> None:
        self._now += 1
        self._uses[key].popleft()

    def _first(self) -> Key:
        return max(self._line, key=lambda key: self._uses[key][0] if self._uses[key] else inf)


def _sequential(num_keys: int, num_accesses: int, rng: Random) -> list[int]:
    return [i % num_keys for i in range(num_accesses)]


def _random(num_keys: int, num_accesses: int, rng: Random) -> list[int]:
    return [int(rng.random() * num_keys) for _ in range(num_accesses)]


# Four accesses of five repeat one of the sixteen before.
REPEATS, RECENT = 0.8, 16


def _temporal_locality(num_keys: int, num_accesses: int, rng: Random) -> list[int]:
    made: list[int] = []
    for _ in range(num_accesses):
        recent = made[-RECENT:]
        if recent and rng.random() < REPEATS:
            made.append(recent[int(rng.random() * len(recent))])
        else:
            made.append(int(rng.random() * num_keys))
    return made


_PATTERNS: dict[str, Callable[[int, int, Random], list[int]]] = {
    "sequential": _sequential,
    "random": _random,
    "temporal-locality": _temporal_locality,
}


def access_pattern(name: str, num_keys: int, num_accesses: int, seed: int = 0) -> tuple[int, ...]:
    """Makes accesses to the keys 0, 1, ... `num_keys - 1`; equal arguments give equal accesses.

    Args:
        name: "sequential", all keys in turn, again and again; "random", each access any key; or
            "temporal-locality", where four accesses of five repeat one of the last 16 and the fifth
            is any key.
        num_keys: how many keys there are.
        num_accesses: how many accesses to make.
        seed: of the two patterns that draw.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1, or no such pattern (the
            error lists those that exist).

    Example:
        >>> access_pattern("sequential", num_keys=3, num_accesses=7)
        (0, 1, 2, 0, 1, 2, 0)
    """
    if name not in _PATTERNS:
        raise ValueError(near(name, _PATTERNS, "access pattern"))
    whole_number("num_keys", num_keys)
    whole_number("num_accesses", num_accesses)
    return tuple(_PATTERNS[name](num_keys, num_accesses, Random(seed)))
