"""The memories below a device, carried out: what a `TierStack` decides, done with bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlib.plan import OutOfBlocks
from kvlib.tensors.block_bytes import BlockBytes, LostBlock
from kvlib.tensors.copy_lane import Copy, CopyLane
from kvlib.tier import Tier
from kvlib.tiers import Move, TierStack

Block = tuple[Tensor, Tensor]


@dataclass
class TierCounters:
    """What went between the device and the tiers below it, in counts.

    Attributes:
        tokens_restored: tokens brought up, which nobody forwarded again.
        blocks_down: blocks that left the device.
        blocks_up: blocks that came to it.
        blocks_lost: copies that turned out damaged or out of reach; each was recomputed.
        blocks_unwritten: copies that could not be made, on a full disk say.
    """

    tokens_restored: int = 0
    blocks_down: int = 0
    blocks_up: int = 0
    blocks_lost: int = 0
    blocks_unwritten: int = 0


class LowerTiers:
    """Keeps blocks by key in the tiers below a device, and brings them back verified.

    The books (`stack`) belong to the caller's thread, the bytes to the lane. The lane works in the
    order in which the books were written, so whatever a piece of work looks for has been put where
    the books say, or could not be: then it is struck out as lost.

    Args:
        places: tiers with what holds their bytes, fastest first.
        block_shape: [L, Hkv, B, D] of keys, and of values.
        dtype: of both.
        lane: who copies.
        options: `policy`, `min_uses`, `eviction` of the `TierStack`.

    Raises:
        TypeError, ValueError: as `TierStack`.
    """

    def __init__(
        self,
        places: Sequence[tuple[Tier, BlockBytes]],
        block_shape: tuple[int, ...],
        dtype: torch.dtype,
        lane: CopyLane,
        **options: object,
    ) -> None:
        self.places = [place for _, place in places]
        self.block_shape, self.dtype, self.lane = block_shape, dtype, lane
        self.block_bytes = 2 * torch.Size(block_shape).numel() * dtype.itemsize
        self.stack = TierStack([tier for tier, _ in places], self.block_bytes, **options)
        self.moved = TierCounters()
        self._failed: deque[tuple[bytes, int, bool]] = deque()

    def store(self, key: bytes, read: Callable[[], Block]) -> Copy | None:
        """Takes a block down; returns the copy that the block's slots must not change before.

        None: the fastest tier holds it already.

        Args:
            key: names it.
            read: returns the device's keys and values, each [L, Hkv, B, D]; the lane calls it.

        Raises:
            OutOfBlocks: all of the fastest tier is pinned. Nothing changes.
        """
        self.settle()
        fresh = self.stack.find(key) != 0
        moves = self.stack.store(key)
        if not moves:
            return None
        self.moved.blocks_down += fresh
        num_bytes = self.block_bytes if fresh else 0
        return self.lane.submit(lambda: self._take_down(moves, key, read), num_bytes)

    def store_chain(
        self, keys: Sequence[bytes], store: Callable[[int], None], num_pinned: int
    ) -> None:
        """Takes a chain of blocks down, as far as there is room.

        Its beginning stays where not all has room: it is of use alone, an end is not.

        Args:
            keys: of the blocks, from the beginning on.
            store: gets the place of one among the keys; calls `store` of this object for it.
            num_pinned: blocks that the fastest tier does not let go.
        """
        most = max(0, min(self.stack.capacity_blocks) - num_pinned)
        # What the beginning will push out goes before it; a disk may be full behind it.
        for i in (*reversed(range(most, len(keys))), *range(len(keys))[:most]):
            try:
                store(i)
            except OutOfBlocks:  # all of the fastest tier is pinned
                break
        self.renew(keys)

    def fetch(self, key: bytes) -> Block:
        """Returns a block's keys and values, verified; the fastest tier holds it from now on.

        On CUDA they may still be on their way to the host: only the lane may read them.

        Raises:
            LookupError: no tier has it, or none in a state to be used. It is offered no more.
        """
        self.settle()
        while (tier := self.stack.find(key)) is not None:
            try:
                moves = self.stack.load(key)
            except OutOfBlocks:
                moves = []  # it is read where it is
            try:
                return self.lane.submit(lambda t=tier, m=moves: self._bring(key, t, m)).result()
            except LookupError:
                self._strike(key, tier)
                self.moved.blocks_lost += 1
                self.settle()
        return self._adopt(key)

    def renew(self, keys: Sequence[bytes]) -> None:
        """Lets the end of a chain that was fetched from its beginning be evicted first again."""
        for key in reversed(keys):
            for tier in range(len(self.places)):
                with suppress(ValueError):  # it is not there
                    self.stack.pin(key, tier)
                    self.stack.unpin(key, tier)
        # A place that evicts by itself, as a server does, takes a look for a use.
        looks = [(key, place) for key in reversed(keys) for place in self.places]
        self.lane.submit(lambda: [key in place for key, place in looks])

    def settle(self) -> None:
        """Strikes out of the books what the lane could not do."""
        while self._failed:
            key, tier, unwritten = self._failed.popleft()
            self._strike(key, tier)
            self.moved.blocks_unwritten += unwritten

    def pin(self, key: bytes) -> None:
        """Keeps a block in the fastest tier until `unpin`; raises as `TierStack.pin`."""
        self.stack.pin(key)

    def unpin(self, key: bytes) -> None:
        """Takes a pin back; one that went with a lost copy is no error."""
        with suppress(ValueError):
            self.stack.unpin(key)

    def forget(self, key: bytes) -> None:
        """Lets every copy go: nobody will ask for it again."""
        for tier in range(len(self.places)):
            self._strike(key, tier)

    def check(self) -> None:
        """Proves that the books are sound, and that every copy in them is where they say.

        Waits for the lane.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.lane.drain()
        self.settle()
        self.stack.check()
        for tier, place in enumerate(self.places):
            keys = self.stack.keys(tier)
            missing = sum(key not in place for key in keys)
            name = self.stack.tiers[tier].name
            assert not missing, f"{missing} of {len(keys)} blocks are not in {name}"

    def _strike(self, key: bytes, tier: int) -> None:
        """Takes one copy out of the books and out of its place."""
        with suppress(ValueError):  # the books may have let it go since
            self.stack.lost(key, tier)
        self.lane.submit(lambda: self.places[tier].remove(key))

    def _adopt(self, key: bytes) -> Block:
        """Brings what another process, or an earlier run, has put into a place that is shared."""
        for tier, place in enumerate(self.places):
            if key not in place:
                continue
            try:
                block = self.lane.submit(lambda p=place: self._verified(p.get(key))).result()
            except KeyError:
                continue  # it was on its way out
            except LostBlock:
                self._strike(key, tier)
                self.moved.blocks_lost += 1
                continue
            with suppress(OutOfBlocks):
                moves = self.stack.store(key)
                self.lane.submit(lambda m=moves, b=block: self._carry_out(m, key, b))
            return block
        raise KeyError(f"no such block in {len(self.places)} tiers")

    def _take_down(self, moves: list[Move], key: bytes, read: Callable[[], Block]) -> None:
        """Runs in the lane. A block that cannot be read off the device is a copy not made."""
        try:
            block = read()
        except (MemoryError, RuntimeError):
            block = None
        self._carry_out(moves, key, block)

    def _bring(self, key: bytes, tier: int, moves: list[Move]) -> Block:
        """Runs in the lane. What the books say of other blocks is done in any case."""
        block = None
        try:
            block = self._verified(self.places[tier].get(key))
            return block
        finally:
            self._carry_out(moves, key, block)

    def _verified(self, block: Block) -> Block:
        for side in block:
            if tuple(side.shape) != self.block_shape or side.dtype != self.dtype:
                raise LostBlock(
                    f"a block here is {self.block_shape} {self.dtype}, this one is"
                    f" {tuple(side.shape)} {side.dtype}"
                )
        return block

    def _carry_out(self, moves: list[Move], wanted: bytes, block: Block | None) -> None:
        """Runs in the lane: does the moves; notes those that cannot be done, and goes on.

        Args:
            moves: in order.
            wanted: the block that is at hand.
            block: its keys and values; None if they could not be had.
        """
        for key, source, target, _ in moves:
            if target is None:
                with suppress(OSError):  # it stays on a disk that does not let it go
                    self.places[source].remove(key)
                continue
            try:
                if key not in self.places[target]:
                    self.places[target].put(key, *self._side(key, source, wanted, block))
            except LookupError:
                self._failed.append((key, target, False))
            except (OSError, MemoryError, RuntimeError):
                self._failed.append((key, target, True))

    def _side(self, key: bytes, source: int | None, wanted: bytes, block: Block | None) -> Block:
        # A block that is still on the device crosses the link once; then the host's copy is read.
        if key == wanted and block is not None and (source is None or block[0].is_cpu):
            return block
        if source is None:
            raise MemoryError("the block could not be read off the device")
        self.lane.arrive()
        return self.places[source].get(key)
