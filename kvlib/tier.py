"""One tier of memory: how fast blocks get out of it and into it, and which it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from kvlib.eviction import FIFOPolicy
from kvlib.frequency import Key
from kvlib.sizes import whole_number


@dataclass(frozen=True)
class Tier:
    """One memory: what it holds and how fast blocks get out of it and into it.

    Attributes:
        name: what a reader calls it.
        capacity_bytes: what it holds.
        read_gb_s: speed of reading a block out of it, to the tier above; GB is 1e9 bytes.
        write_gb_s: speed of writing a block into it; `read_gb_s` when None.
        latency_s: paid once for each transfer, whatever its size.

    Raises:
        TypeError, ValueError: the capacity is no whole number of at least 1, a speed is not a
            finite number above 0, or the latency not one of at least 0.

    Example:
        >>> Tier("host", 10**12, read_gb_s=50, latency_s=0.001).read_s(10**9)
        0.021
    """

    name: str
    capacity_bytes: int
    read_gb_s: float
    write_gb_s: float | None = None
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        whole_number("capacity_bytes", self.capacity_bytes)
        if self.write_gb_s is None:
            object.__setattr__(self, "write_gb_s", self.read_gb_s)
        for name in ("read_gb_s", "write_gb_s"):
            speed = getattr(self, name)
            if not (isfinite(speed) and speed > 0):
                raise ValueError(f"{name} of {self.name} must be a number above 0, got {speed}")
        if not (isfinite(self.latency_s) and self.latency_s >= 0):
            raise ValueError(f"latency_s of {self.name} must be at least 0, got {self.latency_s}")

    def read_s(self, num_bytes: int) -> float:
        """Returns the seconds of one transfer out of this tier."""
        return self.latency_s + num_bytes / (self.read_gb_s * 1e9)

    def write_s(self, num_bytes: int) -> float:
        """Returns the seconds of one transfer into this tier."""
        return self.latency_s + num_bytes / (self.write_gb_s * 1e9)


class TierBooks:
    """Which blocks a tier holds, how often each is pinned, and which goes next.

    Args:
        tier: with its name and its capacity.
        block_bytes: bytes of a block.
        order: an empty eviction policy; it knows the same blocks.

    Attributes:
        capacity: blocks that fit.
        order: the policy.
        pins: how many pins each block has, in the order in which the blocks came.

    Raises:
        ValueError: the tier holds less than a block.

    Example:
        >>> from kvlib.eviction import LRUPolicy
        >>> books = TierBooks(Tier("host", 16, read_gb_s=50), 8, LRUPolicy())
        >>> books.add("a"), books.add("b"), books.pin("a"), books.evict(), list(books)
        (None, None, None, 'b', ['a'])
    """

    def __init__(self, tier: Tier, block_bytes: int, order: FIFOPolicy) -> None:
        if tier.capacity_bytes < block_bytes:
            had = f"{tier.name} has {tier.capacity_bytes}"
            raise ValueError(f"a tier holds at least one block of {block_bytes} bytes, {had}")
        self.name, self.capacity = tier.name, tier.capacity_bytes // block_bytes
        self.order = order
        self.pins: dict[Key, int] = {}

    def __len__(self) -> int:
        """Blocks held."""
        return len(self.pins)

    def __contains__(self, key: Key) -> bool:
        """Whether the tier holds a block."""
        return key in self.pins

    def __iter__(self) -> Iterator[Key]:
        """Yields the blocks in the order in which they came."""
        return iter(self.pins)

    @property
    def is_full(self) -> bool:
        """Whether a block has to go before one can come."""
        return len(self) >= self.capacity

    @property
    def can_take(self) -> bool:
        """Whether there is room for a block, or one that may go."""
        return not self.is_full or self.order.num_evictable > 0

    def add(self, key: Key) -> None:
        """Writes a block down as held, without a pin."""
        self.order.add(key)
        self.pins[key] = 0

    def evict(self) -> Key:
        """Strikes out the block whose turn it is, and returns it."""
        victim = self.order.evict()
        del self.pins[victim]
        return victim

    def remove(self, key: Key) -> None:
        """Strikes out a block with its pins.

        Raises:
            ValueError: it is not held. Nothing changes.
        """
        for _ in range(self._num_pins(key)):
            self.order.unpin(key)
        self.order.remove(key)
        del self.pins[key]

    def pin(self, key: Key) -> None:
        """Keeps a block until it is unpinned as often.

        Raises:
            ValueError: it is not held. Nothing changes.
        """
        self._num_pins(key)
        self.order.pin(key)
        self.pins[key] += 1

    def unpin(self, key: Key) -> None:
        """Takes one pin back.

        Raises:
            ValueError: it is not held, or has no pin. Nothing changes.
        """
        self._num_pins(key)
        self.order.unpin(key)
        self.pins[key] -= 1

    def check(self) -> None:
        """Proves that the tier is not over its capacity and that policy and pins say the same.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        assert len(self) <= self.capacity, "a tier holds more than its capacity"
        assert len(self.order) == len(self), "the eviction policy knows other blocks than are held"
        assert all(key in self.order for key in self), "a held block could never be evicted"
        pinned = sum(pins > 0 for pins in self.pins.values())
        assert self.order.num_evictable == len(self) - pinned, "a pinned block could be evicted"
        self.order.check()

    def _num_pins(self, key: Key) -> int:
        if key not in self.pins:
            held = f"among {len(self)} blocks"
            raise ValueError(f"{self.name} does not hold {shown(key)}, {held}")
        return self.pins[key]


def shown(key: Key) -> str:
    """What an error calls a block: a hash of somebody's tokens is for nobody to read."""
    return "one by its hash" if isinstance(key, bytes) else repr(key)
