"""Random operations on whatever hands memory out in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvlib.allocator import Allocator
from kvlib.arena import Arena, best_fit, first_fit
from kvlib.buddy import BuddyArena
from kvlib.paged_memory import PagedMemory
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.segments import MIB, SegmentPool
from kvlib.slab import SlabPool
from operation_steps import Subject, subject

NO_ROOM = (OutOfBlocks, SequenceTooLong)


class Pieces(Subject):
    """An allocator of contiguous pieces against the cells of its memory."""

    rules = ("_allocate", "_allocate", "_free", "_resize", "_free_again", "_nonsense", "_compact")
    make: Callable[[Any], Allocator]

    def build(self) -> None:
        self.allocator = type(self).make(self.faults)
        self.faults.before(self.allocator, "_take")
        self.live: list[Any] = []
        self.gone: list[Any] = []

    def state(self) -> Any:
        held = [(id(piece), self.allocator.asked(piece)) for piece in self.live]
        return held, self.allocator.pieces, self.allocator.holes

    def check(self) -> None:
        self.allocator.check()
        held = sorted(self.live)
        assert held == list(self.allocator.pieces), "not the pieces that were handed out"
        used = sum(piece.size for piece in held)
        free, size = self.allocator.num_free, self.allocator.size
        assert used + free == size, f"{used} used and {free} free of {size}"
        parts = self.allocator.split(next_size=4)
        assert parts.used + parts.internal_fragmentation == used, "a split that adds up to else"

    def finish(self) -> None:
        for piece in self.live:
            self.allocator.free(piece)
        self.live = []
        self.check()

    def _allocate(self) -> None:
        size = self.random.randint(1, 13)
        if self.allocator.can_allocate(size):
            self.live.append(self.allocator.allocate(size))
        else:
            self.refused(lambda: self.allocator.allocate(size), *NO_ROOM)

    def _free(self) -> None:
        if self.live:
            piece = self.random.choice(self.live)
            self.allocator.free(piece)
            self._forget(piece)

    def _resize(self) -> None:
        if not self.live:
            return
        old, size = self.random.choice(self.live), self.random.randint(1, 14)
        before = self.state()
        try:
            new = self.allocator.resize(old, size)
        except NO_ROOM:
            assert self.state() == before, "a refused call changed something"
            return
        assert new.size >= size, f"{new} for {size}"
        self._forget(old)
        self.live.append(new)

    def _free_again(self) -> None:
        if self.gone:
            piece = self.random.choice(self.gone)
            if not any(piece is mine for mine in self.live):
                self.refused(lambda: self.allocator.free(piece), ValueError)

    def _nonsense(self) -> None:
        size = self.random.choice([0, -1, 1.5, True, "2", None])
        self.refused(lambda: self.allocator.allocate(size), TypeError, ValueError)

    def _compact(self) -> None:
        if not isinstance(self.allocator, Arena) or not self.chance(0.1):
            return
        moved = {id(old): (old, new) for old, new in self.allocator.compact()}
        for old, new in moved.values():
            self._forget(old)
            self.live.append(new)

    def _forget(self, piece: Any) -> None:
        self.live = [mine for mine in self.live if mine is not piece]
        self.gone = [*self.gone[-9:], piece]


def _fit_that_fails(faults: Any) -> Allocator:
    def fit(holes: Any, size: int) -> Any:
        faults.here()
        return first_fit(holes, size)

    return Arena(24, fit)


class Blocks(Pieces):
    """Paged memory: any block serves anybody."""

    def build(self) -> None:
        self.allocator = PagedMemory(self.random.choice([4, 8, 24]), self.random.choice([1, 3, 5]))
        self.faults.before(self.allocator.pool, "allocate")
        self.live, self.gone = [], []

    def state(self) -> Any:
        held = [(id(piece), [*piece.block_ids], piece.asked) for piece in self.live]
        return held, self.allocator.num_free

    def check(self) -> None:
        self.allocator.check()
        assert set(map(id, self.live)) == set(map(id, self.allocator.pieces)), "a piece is lost"
        used = sum(piece.size for piece in self.live)
        assert used + self.allocator.num_free == self.allocator.size, "units are lost"


class Segments(Subject):
    """The model of PyTorch's allocator: segments that are cut, by best fit."""

    rules = ("_allocate", "_allocate", "_free", "_free_again")
    expandable = False

    def build(self) -> None:
        self.pool = SegmentPool(self.expandable)
        self.live: list[Any] = []
        self.gone: list[Any] = []

    def state(self) -> Any:
        return self.pool.layout()

    def check(self) -> None:
        self.pool.check()
        used = sum(block.piece.size for block in self.live)
        assert used == self.pool.used_bytes, f"{used} handed out, {self.pool.used_bytes} counted"

    def finish(self) -> None:
        for block in self.live:
            self.pool.free(block)
        assert not self.pool.used_bytes, f"{self.pool.used_bytes} bytes are left"

    def _allocate(self) -> None:
        if len(self.live) < 12:
            size = self.random.choice([1, 511, 512, 4096, MIB, MIB + 1, 3 * MIB, 9 * MIB, 21 * MIB])
            block = self.pool.allocate(size)
            assert block.piece.size >= size, f"{block.piece} for {size}"
            self.live.append(block)

    def _free(self) -> None:
        if self.live:
            self.gone = [*self.gone[-5:], self.live.pop(self.random.randrange(len(self.live)))]
            self.pool.free(self.gone[-1])

    def _free_again(self) -> None:
        if self.gone:
            block = self.random.choice(self.gone)
            self.refused(lambda: self.pool.free(block), ValueError)


SUBJECTS = {
    "arena, first fit": subject(Pieces, make=_fit_that_fails),
    "arena, best fit": subject(Pieces, make=lambda faults: Arena(30, best_fit)),
    "buddy": subject(Pieces, make=lambda faults: BuddyArena(32)),
    "buddy of no power": subject(Pieces, make=lambda faults: BuddyArena(27)),
    "slab": subject(Pieces, make=lambda faults: SlabPool(24, 5)),
    "paged memory": Blocks,
    "segments": Segments,
    "segments that grow": subject(Segments, expandable=True),
}
