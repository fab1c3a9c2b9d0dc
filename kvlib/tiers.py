"""Where a block lies when the device is full: memories below it, each larger and slower.

A `TierStack` is bookkeeping: it says which copies exist and what must be moved, and moves nothing.
Carried out in order, its moves are a program: room is made before a copy is written, and a copy is
let go only after the block has been written below, where it has to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from kvlib.eviction import FIFOPolicy, LRUPolicy
from kvlib.frequency import Key
from kvlib.plan import OutOfBlocks
from kvlib.sizes import whole_number

POLICIES = ("write_through", "write_back", "selective")


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


class Move(NamedTuple):
    """One thing to do: copy a block from `source` to `target`, both places in the stack.

    The source keeps its copy. A source of None is the model: the block was just computed. A target
    of None lets the source's copy go, and moves no bytes.
    """

    key: Key
    source: int | None
    target: int | None
    num_bytes: int


class TierStack:
    """Which tiers hold which blocks, and what to move when one is stored, loaded or lost.

    What is evicted from a tier goes down to the next that can take it, unless a lower one holds it
    already. So `policy` decides only when a block is written down *before* that: at once
    (`"write_through"`), never (`"write_back"`), or when it is used for the `min_uses`-th time
    (`"selective"`, which drops what is evicted with fewer uses). A block whose last copy goes is
    counted in `num_dropped`: no block vanishes untold.

    Blocks are named by their content, so a copy never goes stale and nothing is ever written twice
    for being changed; "dirty" means only that no lower tier holds it.

    The books run ahead of the bytes: a copy that could not be made (a full disk, a torn source) is
    told to the stack with `lost(key, target)`.

    Args:
        tiers: fastest first, at least one.
        block_bytes: bytes of a block, the same in all tiers.
        policy: one of `POLICIES`.
        min_uses: uses after which a selective stack writes a block down; storing it is the first.
        eviction: makes each tier's eviction policy. A use counts in every tier that holds the
            block.

    Attributes:
        bytes_read: of each tier, so far.
        bytes_written: of each tier, so far.
        num_dropped: blocks that no tier held any more after an eviction.

    Raises:
        TypeError, ValueError: no tier, one that holds less than a block, or no such policy.

    Example:
        Room for one block above and two below; the second block pushes the first one down:

        >>> stack = TierStack([Tier("gpu", 8, 100), Tier("cpu", 16, 10)], 8, policy="write_back")
        >>> stack.store("a")
        [Move(key='a', source=None, target=0, num_bytes=8)]
        >>> for move in stack.store("b"): print(tuple(move))
        ('a', 0, 1, 8)
        ('a', 0, None, 0)
        ('b', None, 0, 8)
        >>> stack.find("a"), stack.find("b"), stack.find("c")
        (1, 0, None)
    """

    def __init__(
        self,
        tiers: list[Tier],
        block_bytes: int,
        *,
        policy: str = "write_through",
        min_uses: int = 2,
        eviction: Callable[[], FIFOPolicy] = LRUPolicy,
    ) -> None:
        whole_number("block_bytes", block_bytes)
        whole_number("min_uses", min_uses)
        whole_number("number of tiers", len(tiers))
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
        for tier in tiers:
            if tier.capacity_bytes < block_bytes:
                had = f"{tier.name} has {tier.capacity_bytes}"
                raise ValueError(f"a tier holds at least one block of {block_bytes} bytes, {had}")
        self.tiers, self.block_bytes = tuple(tiers), block_bytes
        self.policy, self.min_uses = policy, min_uses
        self.capacity_blocks = tuple(tier.capacity_bytes // block_bytes for tier in tiers)
        self.bytes_read, self.bytes_written = [0] * len(tiers), [0] * len(tiers)
        self.num_dropped = 0
        self._orders = [eviction() for _ in tiers]
        self._pins: list[dict[Key, int]] = [{} for _ in tiers]
        self._uses: dict[Key, int] = {}

    def __len__(self) -> int:
        """Blocks held in one tier or more."""
        return len(self._uses)

    def find(self, key: Key) -> int | None:
        """Returns the fastest tier that holds a block, or None."""
        return next((i for i, held in enumerate(self._pins) if key in held), None)

    def keys(self, tier: int) -> list[Key]:
        """Returns the blocks a tier holds, in the order in which they came."""
        return list(self._pins[tier])

    @property
    def dirty(self) -> list[Key]:
        """Blocks of the fastest tier that no lower one holds: what a crash of it would lose."""
        return [key for key in self._pins[0] if not self._is_below(key, 0)]

    def seconds(self, move: Move) -> float:
        """Returns the time of one move on its own; up it is a read, down a write."""
        if move.source is None or move.target is None:
            return 0.0
        if move.target < move.source:
            return self.tiers[move.source].read_s(move.num_bytes)
        return self.tiers[move.target].write_s(move.num_bytes)

    def store(self, key: Key) -> list[Move]:
        """Takes a computed block into the fastest tier; returns what to move.

        A block that is there already counts as used.

        Raises:
            OutOfBlocks: every block of the fastest tier is pinned. Nothing changes.
        """
        moves = [] if key in self._pins[0] else self._put(key, None, 0)
        return moves + self._use(key)

    def load(self, key: Key) -> list[Move]:
        """Brings a held block up to the fastest tier, through those between; returns the moves.

        Raises:
            LookupError: no tier holds it. Nothing changes.
            OutOfBlocks: every block of the fastest tier is pinned. Nothing changes.
        """
        source = self.find(key)
        if source is None:
            asked = f"asked for {_shown(key)}, {len(self)} held"
            raise LookupError(f"only a held block is loaded, {asked}")
        if source:
            self._require_room(0)
        moves = []
        for target in reversed(range(source)):
            if self._can_take(target):
                self.pin(key, source)
                moves += self._put(key, source, target)
                self.unpin(key, source)
                source = target
        return moves + self._use(key)

    def flush(self) -> list[Move]:
        """Writes every dirty block down one tier, as before a shutdown; returns what to move.

        For this no block of the fastest tier loses a copy that it has below. A dirty one for which
        such copies, or pins, leave no room stays dirty.
        """
        below = range(1, len(self.tiers))
        safe = [(key, i) for key in self._pins[0] for i in below if key in self._pins[i]]
        for copy in safe:
            self.pin(*copy)
        moves = []
        for key in self.dirty:
            if written := self._write_down(key, 2):
                moves += written
                safe.append((key, 1))
                self.pin(key, 1)
        for copy in safe:
            self.unpin(*copy)
        return moves

    def lost(self, key: Key, tier: int) -> int | None:
        """Strikes out a copy that turned out torn, tampered with or out of reach, with its pins.

        It is never offered from there again, unless it is written there anew.

        Returns:
            The fastest tier that still holds the block, None if it is to be computed again.

        Raises:
            ValueError: that tier does not hold it. Nothing changes.
        """
        for _ in range(self._held(key, tier)):
            self._orders[tier].unpin(key)
        self._orders[tier].remove(key)
        self._strike_out(key, tier)
        return self.find(key)

    def pin(self, key: Key, tier: int = 0) -> None:
        """Keeps a copy where it is: a sequence or a transfer is using it.

        Raises:
            ValueError: that tier does not hold it. Nothing changes.
        """
        self._held(key, tier)
        self._orders[tier].pin(key)
        self._pins[tier][key] += 1

    def unpin(self, key: Key, tier: int = 0) -> None:
        """Takes one pin back.

        Raises:
            ValueError: that tier does not hold it, or it has no pin. Nothing changes.
        """
        self._held(key, tier)
        self._orders[tier].unpin(key)
        self._pins[tier][key] -= 1

    def check(self) -> None:
        """Proves that no tier is over its capacity and that all its books say the same.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        for held, order, capacity in zip(
            self._pins, self._orders, self.capacity_blocks, strict=True
        ):
            assert len(held) <= capacity, "a tier holds more than its capacity"
            assert len(order) == len(held), "the eviction policy knows other blocks than are held"
            assert all(key in order for key in held), "a held block could never be evicted"
            pinned = sum(pins > 0 for pins in held.values())
            assert order.num_evictable == len(held) - pinned, "a pinned block could be evicted"
            order.check()
        assert self._uses.keys() == set().union(*self._pins), "uses are counted of other blocks"

    def _held(self, key: Key, tier: int) -> int:
        if key not in self._pins[tier]:
            name = self.tiers[tier].name
            held = f"among {len(self._pins[tier])} blocks"
            raise ValueError(f"{name} does not hold {_shown(key)}, {held}")
        return self._pins[tier][key]

    def _is_below(self, key: Key, tier: int) -> bool:
        return any(key in held for held in self._pins[tier + 1 :])

    def _can_take(self, tier: int) -> bool:
        order = self._orders[tier]
        return len(order) < self.capacity_blocks[tier] or order.num_evictable > 0

    def _require_room(self, tier: int) -> None:
        if not self._can_take(tier):
            held = f"{len(self._pins[tier])} of {self.tiers[tier].name} all pinned"
            raise OutOfBlocks(f"asked for room for 1 block, {held}")

    def _use(self, key: Key) -> list[Move]:
        self._uses[key] += 1
        for order in self._orders:
            if key in order:
                order.touch(key)
        due = self._uses[key] >= self.min_uses
        if self.policy == "write_through" or (self.policy == "selective" and due):
            return self._write_down(key, len(self.tiers))
        return []

    def _write_down(self, key: Key, stop: int) -> list[Move]:
        moves, source = [], 0
        for target in range(1, min(stop, len(self.tiers))):
            if key not in self._pins[target] and self._can_take(target):
                moves += self._put(key, source, target)
            if key in self._pins[target]:
                source = target
        return moves

    def _put(self, key: Key, source: int | None, target: int) -> list[Move]:
        moves = self._make_room(target)
        self._orders[target].add(key)
        self._pins[target][key] = 0
        self._uses.setdefault(key, 0)
        if source is not None:
            self.bytes_read[source] += self.block_bytes
        self.bytes_written[target] += self.block_bytes
        return [*moves, Move(key, source, target, self.block_bytes)]

    def _make_room(self, tier: int) -> list[Move]:
        self._require_room(tier)
        if len(self._orders[tier]) < self.capacity_blocks[tier]:
            return []
        victim = self._orders[tier].evict()
        moves = self._go_down(victim, tier)
        self._strike_out(victim, tier)
        self.num_dropped += victim not in self._uses
        return [*moves, Move(victim, tier, None, 0)]

    def _go_down(self, key: Key, tier: int) -> list[Move]:
        spared = self.policy == "selective" and self._uses[key] < self.min_uses
        if spared or self._is_below(key, tier):
            return []
        lower = (i for i in range(tier + 1, len(self.tiers)) if self._can_take(i))
        target = next(lower, None)
        return [] if target is None else self._put(key, tier, target)

    def _strike_out(self, key: Key, tier: int) -> None:
        del self._pins[tier][key]
        if self.find(key) is None:
            del self._uses[key]


def _shown(key: Key) -> str:
    """What an error calls a block: a hash of somebody's tokens is for nobody to read."""
    return "one by its hash" if isinstance(key, bytes) else repr(key)
