"""Where a block lies when the device is full: memories below it, each larger and slower.

A `TierStack` is bookkeeping: it says which copies exist and what must be moved, and moves nothing.
Carried out in order, its moves are a program: room is made before a copy is written, and a copy is
let go only after the block has been written below, where it has to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvlib.eviction import FIFOPolicy, LRUPolicy
from kvlib.frequency import Key
from kvlib.plan import OutOfBlocks
from kvlib.sizes import whole_number
from kvlib.tier import Tier, TierBooks, shown

POLICIES = ("write_through", "write_back", "selective")


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
        self._books = [TierBooks(tier, block_bytes, eviction()) for tier in tiers]
        self.tiers, self.block_bytes = tuple(tiers), block_bytes
        self.policy, self.min_uses = policy, min_uses
        self.capacity_blocks = tuple(books.capacity for books in self._books)
        self.bytes_read, self.bytes_written = [0] * len(tiers), [0] * len(tiers)
        self.num_dropped = 0
        self._uses: dict[Key, int] = {}

    def __len__(self) -> int:
        """Blocks held in one tier or more."""
        return len(self._uses)

    def find(self, key: Key) -> int | None:
        """Returns the fastest tier that holds a block, or None."""
        return next((i for i, held in enumerate(self._books) if key in held), None)

    def keys(self, tier: int) -> list[Key]:
        """Returns the blocks a tier holds, in the order in which they came."""
        return list(self._books[tier])

    @property
    def dirty(self) -> list[Key]:
        """Blocks of the fastest tier that no lower one holds: what a crash of it would lose."""
        return [key for key in self._books[0] if not self._is_below(key, 0)]

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
        moves = [] if key in self._books[0] else self._put(key, None, 0)
        return moves + self._use(key)

    def load(self, key: Key) -> list[Move]:
        """Brings a held block up to the fastest tier, through those between; returns the moves.

        Raises:
            LookupError: no tier holds it. Nothing changes.
            OutOfBlocks: every block of the fastest tier is pinned. Nothing changes.
        """
        source = self.find(key)
        if source is None:
            asked = f"asked for {shown(key)}, {len(self)} held"
            raise LookupError(f"only a held block is loaded, {asked}")
        if source:
            self._require_room(0)
        moves = []
        for target in reversed(range(source)):
            if self._books[target].can_take:
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
        safe = [(key, i) for key in self._books[0] for i in below if key in self._books[i]]
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
        self._books[tier].remove(key)
        self._forget_unheld(key)
        return self.find(key)

    def pin(self, key: Key, tier: int = 0) -> None:
        """Keeps a copy where it is: a sequence or a transfer is using it.

        Raises:
            ValueError: that tier does not hold it. Nothing changes.
        """
        self._books[tier].pin(key)

    def unpin(self, key: Key, tier: int = 0) -> None:
        """Takes one pin back.

        Raises:
            ValueError: that tier does not hold it, or it has no pin. Nothing changes.
        """
        self._books[tier].unpin(key)

    def check(self) -> None:
        """Proves that no tier is over its capacity and that all its books say the same.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        for books in self._books:
            books.check()
        assert self._uses.keys() == set().union(*self._books), "uses are counted of other blocks"

    def _is_below(self, key: Key, tier: int) -> bool:
        return any(key in held for held in self._books[tier + 1 :])

    def _require_room(self, tier: int) -> None:
        if not self._books[tier].can_take:
            held = f"{len(self._books[tier])} of {self.tiers[tier].name} all pinned"
            raise OutOfBlocks(f"asked for room for 1 block, {held}")

    def _use(self, key: Key) -> list[Move]:
        self._uses[key] += 1
        for books in self._books:
            if key in books:
                books.order.touch(key)
        due = self._uses[key] >= self.min_uses
        if self.policy == "write_through" or (self.policy == "selective" and due):
            return self._write_down(key, len(self.tiers))
        return []

    def _write_down(self, key: Key, stop: int) -> list[Move]:
        moves, source = [], 0
        for target in range(1, min(stop, len(self.tiers))):
            if key not in self._books[target] and self._books[target].can_take:
                moves += self._put(key, source, target)
            if key in self._books[target]:
                source = target
        return moves

    def _put(self, key: Key, source: int | None, target: int) -> list[Move]:
        moves = self._make_room(target)
        self._books[target].add(key)
        self._uses.setdefault(key, 0)
        if source is not None:
            self.bytes_read[source] += self.block_bytes
        self.bytes_written[target] += self.block_bytes
        return [*moves, Move(key, source, target, self.block_bytes)]

    def _make_room(self, tier: int) -> list[Move]:
        self._require_room(tier)
        if not self._books[tier].is_full:
            return []
        victim = self._books[tier].evict()
        moves = self._go_down(victim, tier)
        self._forget_unheld(victim)
        self.num_dropped += victim not in self._uses
        return [*moves, Move(victim, tier, None, 0)]

    def _go_down(self, key: Key, tier: int) -> list[Move]:
        spared = self.policy == "selective" and self._uses[key] < self.min_uses
        if spared or self._is_below(key, tier):
            return []
        lower = (i for i in range(tier + 1, len(self.tiers)) if self._books[i].can_take)
        target = next(lower, None)
        return [] if target is None else self._put(key, tier, target)

    def _forget_unheld(self, key: Key) -> None:
        if self.find(key) is None:
            del self._uses[key]
