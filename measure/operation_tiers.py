"""Random operations on a stack of tiers, whose moves are carried out on a shadow and fail."""

from __future__ import annotations

from typing import Any

from kvlib.eviction import FIFOPolicy, LFUPolicy, LRUPolicy
from kvlib.plan import OutOfBlocks
from kvlib.tier import Tier
from kvlib.tiers import POLICIES, Move, TierStack
from operation_steps import Subject, subject


class Tiers(Subject):
    """A stack, and what its moves have really put where."""

    rules = ("_store", "_store", "_load", "_load", "_flush", "_pin", "_unpin", "_lose", "_refuse")
    policy = "write_through"

    def build(self) -> None:
        sizes = [self.random.randint(1, 5) for _ in range(self.random.randint(1, 3))]
        kind = self.random.choice([FIFOPolicy, LRUPolicy, LFUPolicy])
        tiers = [Tier(f"tier {i}", 8 * size + 3, 10) for i, size in enumerate(sizes)]
        uses = self.random.randint(1, 3)
        self.stack = TierStack(tiers, 8, policy=self.policy, min_uses=uses, eviction=kind)
        self.there: list[set[int]] = [set() for _ in sizes]
        self.pins: list[tuple[int, int]] = []
        self.sizes, self.written = sizes, [0] * len(sizes)

    def state(self) -> Any:
        stack = self.stack
        orders = [[*books.order._line] for books in stack._books]
        pins = [dict(books.pins) for books in stack._books]
        return orders, pins, dict(stack._uses), stack.num_dropped

    def check(self) -> None:
        self.stack.check()
        books = [set(self.stack.keys(i)) for i in range(len(self.there))]
        assert books == self.there, f"the books say {books}, there are {self.there}"
        for held, size in zip(self.there, self.sizes, strict=True):
            assert len(held) <= size, f"{len(held)} blocks in a tier of {size}"
        for key, tier in self.pins:
            assert key in self.there[tier], f"{key} is pinned in {tier} and gone"
        assert self.stack.bytes_written == [8 * n for n in self.written], "bytes miscounted"
        assert len(self.stack) == len(set().union(*self.there)), "blocks miscounted"

    def finish(self) -> None:
        for pin in self.pins:
            self.stack.unpin(*pin)
        self.pins = []
        for tier, held in enumerate(self.there):
            for key in [*held]:
                self.stack.lost(key, tier)
                held.remove(key)
        self.check()
        assert not len(self.stack), "a block is in no tier"

    def _call(self, call: Any, *keys: int) -> None:
        """Makes a call and carries its moves out; one copy may come out torn."""
        before, known = self.state(), set().union(*self.there)
        try:
            moves = call(*keys)
        except OutOfBlocks:
            assert self.state() == before, "a refused call changed something"
            return
        broken = self.random.randrange(len(moves)) if moves and self.chance(0.1) else -1
        self._carry_out(moves, broken)
        gone = known - set().union(*self.there)
        told = {move.key for move in moves if move.target is None}
        assert broken >= 0 or gone <= told, f"{gone - told} vanished untold"

    def _carry_out(self, moves: list[Move], broken: int) -> None:
        bad: set[tuple[int, int]] = set()
        for i, (key, source, target, _) in enumerate(moves):
            if target is None:
                bad.discard((key, source))
                self.there[source].discard(key)
                continue
            self.written[target] += 1
            assert source is None or key in self.there[source], f"{key} is not in {source}"
            assert len(self.there[target]) < self.sizes[target], f"no room in {target}"
            self.there[target].add(key)
            if i == broken or (key, source) in bad:
                self.faults.raised += i == broken
                bad.add((key, target))
        for key, tier in bad:
            self.stack.lost(key, tier)
            self.there[tier].remove(key)
            self.pins = [pin for pin in self.pins if pin != (key, tier)]

    def _store(self) -> None:
        self._call(self.stack.store, self.random.randrange(9))

    def _load(self) -> None:
        key = self.random.randrange(9)
        if self.stack.find(key) is None:
            self.refused(lambda: self.stack.load(key), LookupError)
        else:
            self._call(self.stack.load, key)

    def _flush(self) -> None:
        self._call(self.stack.flush)

    def _copy(self) -> tuple[int, int] | None:
        copies = [(key, tier) for tier, held in enumerate(self.there) for key in sorted(held)]
        return self.random.choice(copies) if copies else None

    def _pin(self) -> None:
        copy = self._copy()
        if copy and len(self.pins) < 4:
            self.stack.pin(*copy)
            self.pins.append(copy)

    def _unpin(self) -> None:
        if self.pins:
            self.stack.unpin(*self.pins.pop(self.random.randrange(len(self.pins))))

    def _lose(self) -> None:
        """A copy turns out torn, though nobody moved it."""
        copy = self._copy()
        if copy and self.chance(0.5):
            key, tier = copy
            self.stack.lost(key, tier)
            self.there[tier].remove(key)
            self.pins = [pin for pin in self.pins if pin != copy]
            self.faults.raised += 1

    def _refuse(self) -> None:
        key, tier = self.random.randrange(9), self.random.randrange(len(self.there))
        if key not in self.there[tier]:
            for call in (self.stack.pin, self.stack.unpin, self.stack.lost):
                self.refused(lambda call=call: call(key, tier), ValueError)


SUBJECTS = {f"tiers: {name}": subject(Tiers, policy=name) for name in POLICIES}
