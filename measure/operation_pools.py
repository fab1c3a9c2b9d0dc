"""Random operations on a block pool, and on the policies that choose which key to give up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from kvlib.blocks import BlockPool
from kvlib.eviction import FIFOPolicy, LFUPolicy, LRUPolicy
from kvlib.plan import OutOfBlocks
from operation_steps import Subject, subject


class Pool(Subject):
    """A block pool against counts of references, with a listener that fails now and then."""

    rules = ("_allocate", "_allocate", "_share", "_free", "_free", "_mark", "_unmark", "_refuse")
    partial = frozenset({"_unmark"})

    def build(self) -> None:
        self.pool = BlockPool(self.random.choice([1, 3, 8, 13]))
        self.refs: Counter[int] = Counter()
        self.content: set[int] = set()
        self.pool.on_evict, self.unmarked = self._evicted, -1

    def _evicted(self, block_id: int) -> None:
        assert not self.refs[block_id] or block_id == self.unmarked, "a held block was evicted"
        self.content.remove(block_id)
        self.faults.here()

    def state(self) -> Any:
        return [self.pool.ref_count(block_id) for block_id in range(self.pool.num_blocks)]

    def check(self) -> None:
        self.pool.check()
        everyone = range(self.pool.num_blocks)
        assert self.state() == [self.refs[each] for each in everyone], "references miscounted"
        assert self.content == {b for b in everyone if self.pool.has_content(b)}, "content lost"
        idle = sum(not self.refs[each] for each in everyone)
        assert self.pool.num_free == idle == self.pool.num_blocks - self.pool.num_held, "free"
        assert self.pool.num_kept == sum(not self.refs[each] for each in self.content), "kept"

    def finish(self) -> None:
        self.pool.free([*self.refs.elements()])
        self.refs.clear()
        self.check()
        assert self.pool.num_free == self.pool.num_blocks, "a block is held by nobody"

    def _any(self) -> int:
        return self.random.randrange(self.pool.num_blocks)

    def _allocate(self) -> None:
        count, free = self.random.randint(0, 4), self.pool.num_free
        if count > free:
            self.refused(lambda: self.pool.allocate(count), OutOfBlocks)
            return
        taken = self.pool.allocate(count)
        assert len(set(taken)) == count, "a block was handed out twice"
        assert not any(self.refs[each] for each in taken), "a held block was handed out"
        self.refs.update(taken)

    def _share(self) -> None:
        block_ids = [self._any() for _ in range(self.random.randint(1, 3))]
        if all(self.refs[each] or each in self.content for each in block_ids):
            self.pool.share(block_ids)
            self.refs.update(block_ids)
        else:
            self.refused(lambda: self.pool.share(block_ids), ValueError)

    def _free(self) -> None:
        block_ids = [self._any() for _ in range(self.random.randint(1, 3))]
        if not Counter(block_ids) - self.refs:
            self.pool.free(block_ids)
            self.refs.subtract(block_ids)
        else:
            self.refused(lambda: self.pool.free(block_ids), ValueError)

    def _mark(self) -> None:
        block_id = self._any()
        if self.refs[block_id]:
            self.pool.mark(block_id)
            self.content.add(block_id)
        else:
            self.refused(lambda: self.pool.mark(block_id), ValueError)

    def _unmark(self) -> None:
        self.unmarked = self._any()
        try:
            self.pool.unmark(self.unmarked)
        finally:
            self.unmarked = -1

    def _refuse(self) -> None:
        most = self.pool.num_blocks
        for bad in (most, -1, True, 0.0, "0"):
            self.refused(lambda bad=bad: self.pool.free([bad]), ValueError)
        self.refused(lambda: self.pool.allocate(most + 1), OutOfBlocks)


class Policy(Subject):
    """An eviction policy against the keys it holds and their pins."""

    rules = ("_add", "_add", "_touch", "_pin", "_unpin", "_remove", "_evict")
    make: Callable[[], FIFOPolicy] = FIFOPolicy

    def build(self) -> None:
        self.policy = type(self).make()
        self.pins: dict[int, int] = {}

    def state(self) -> Any:
        return [*self.policy._pins.items()], [*self.policy._line]

    def check(self) -> None:
        self.policy.check()
        assert self.policy._pins == self.pins, "other keys, or other pins"
        free = sum(not pins for pins in self.pins.values())
        assert self.policy.num_evictable == free, f"{free} keys have no pin"

    def _key(self) -> int:
        return self.random.randrange(9)

    def _add(self) -> None:
        key = self._key()
        if key in self.pins:
            self.refused(lambda: self.policy.add(key), ValueError)
        else:
            self.policy.add(key)
            self.pins[key] = 0

    def _touch(self) -> None:
        key = self._key()
        if key in self.pins:
            self.policy.touch(key)
        else:
            self.refused(lambda: self.policy.touch(key), ValueError)

    def _pin(self) -> None:
        key = self._key()
        if key in self.pins:
            self.policy.pin(key)
            self.pins[key] += 1
        else:
            self.refused(lambda: self.policy.pin(key), ValueError)

    def _unpin(self) -> None:
        key = self._key()
        if self.pins.get(key):
            self.policy.unpin(key)
            self.pins[key] -= 1
        else:
            self.refused(lambda: self.policy.unpin(key), ValueError)

    def _remove(self) -> None:
        key = self._key()
        if self.pins.get(key) == 0:
            self.policy.remove(key)
            del self.pins[key]
        else:
            self.refused(lambda: self.policy.remove(key), ValueError)

    def _evict(self) -> None:
        if 0 in self.pins.values():
            key = self.policy.evict()
            assert self.pins.pop(key) == 0, "a pinned key was evicted"
        else:
            self.refused(self.policy.evict, OutOfBlocks)


SUBJECTS = {
    "block pool": Pool,
    "policy: FIFO": Policy,
    "policy: LRU": subject(Policy, make=LRUPolicy),
    "policy: LFU": subject(Policy, make=LFUPolicy),
}
