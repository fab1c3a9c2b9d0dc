"""Random operations on every cache: failing copies and canaries here, a sound twin beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kvlib.plan import OutOfBlocks
from kvlib.sizes import KVShape
from kvlib.tensors.caches import LedgerCache
from kvlib.tensors.contiguous import AlignedKVCache, ContiguousKVCache
from kvlib.tensors.head_sharded import HeadShardedKVCache
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.sequence_sharded import SequenceShardedKVCache
from kvlib.tensors.sink_window import RollingKVCache, SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache
from kvlib.tensors.top_blocks import TopBlocksKVCache
from operation_steps import Subject, subject
from operation_tensors import CANARIES, Anywhere, InTensors, as_bytes, content, fill_free

SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=4)
NUM_Q_HEADS, MOST, LONGEST = 4, 12, 30


class GivenUp(Exception):
    """A step was broken off before its end."""


class Alone:
    """The only rank of its group: what it brings is all there is."""

    rank, size, salt = 0, 1, b""

    def agree(self, what: str, mine: str) -> None:
        """Nobody disagrees."""

    def gather(self, part: Tensor) -> list[Tensor]:
        """Returns this rank's part."""
        return [part]


class Cache(Subject):
    """A cache with NaN and canaries in every free slot and failing copies, beside its twin.

    The twin gets the same calls, clean and without a fault. So what one attends to, and every
    number that it holds, must be the other's, bit by bit; outputs up to rounding, since a kernel
    may take another way where tokens lie elsewhere.
    """

    fault_share, share = 0.3, 0.01
    make: Callable[[], LedgerCache]
    rules = (*("_add", "_add", "_free"), *("_step",) * 4, "_break_off")
    most_seqs = 4

    def build(self) -> None:
        self.faults = Anywhere(self.random)
        self.cache, self.twin = (type(self).make() for _ in range(2))
        self.lengths: dict[int, int] = {}
        self.num_made = 0
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(32))
        self.total = self.cache.ledger.num_free
        self._growth()
        fill_free(self.cache, CANARIES[0])

    def _growth(self) -> None:
        """Rows that grow hold NaN where nothing was copied."""
        make = self.cache._new_store

        def poisoned(row_len: int) -> Any:
            longer = make(row_len)
            longer.keys.fill_(torch.nan)
            longer.values.fill_(torch.nan)
            return longer

        self.cache._new_store = poisoned

    def state(self) -> Any:
        with self.faults.paused():
            ledger = self.cache.ledger
            held = {s: as_bytes(content(self.cache, s)) for s in ledger.seq_ids}
            return {s: ledger.length(s) for s in ledger.seq_ids}, held, ledger.num_free

    def check(self) -> None:
        self.cache.check()
        self.twin.check()
        for cache in (self.cache, self.twin):
            live = {s: cache.length(s) for s in cache.ledger.seq_ids}
            assert live == self.lengths, f"lengths are {live}, should be {self.lengths}"
        for seq_id in self.lengths:
            mine, right = (as_bytes(content(c, seq_id)) for c in (self.cache, self.twin))
            assert mine == right, f"{seq_id} holds other numbers than it was given"

    def finish(self) -> None:
        for seq_id in self.lengths:
            self.cache.free(seq_id)
            self.twin.free(seq_id)
        self.lengths = {}
        self.check()
        assert self.cache.ledger.num_free == self.total, "nobody lives, and something is held"

    def do(self, name: str, *, faulty: bool) -> None:
        with InTensors(self.faults):
            super().do(name, faulty=faulty)
        if self.chance(0.5):
            fill_free(self.cache, self.random.choice(CANARIES))

    def both(self, call: Callable[[LedgerCache], Any]) -> bool:
        """Makes a call of both, compares what they return; answers whether it was taken."""
        mine, refused = self._called(call, self.cache)
        self.faults.disarm()
        right, expected = self._called(call, self.twin)
        assert refused is expected, f"refused with {refused}, the twin with {expected}"
        for out, wanted in zip(mine or (), right or (), strict=True):
            assert bool(torch.isfinite(out).all()), "attention saw what nobody wrote"
            torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
        return refused is None

    def _called(self, call: Callable[[LedgerCache], Any], cache: LedgerCache) -> tuple[Any, Any]:
        try:
            return call(cache), None
        except (OutOfBlocks, ValueError) as error:  # too long, or gone for good
            return None, type(error)

    def _any(self) -> int:
        return self.random.choice([*self.lengths])

    def _add(self) -> None:
        if len(self.lengths) < self.most_seqs + 1:
            seq_id = self.num_made = self.num_made + 1
            if self.both(lambda cache: cache.add(seq_id)):
                self.lengths[seq_id] = 0

    def _free(self) -> None:
        if self.lengths:
            seq_id = self._any()
            self.both(lambda cache: cache.free(seq_id))
            del self.lengths[seq_id]

    def _new(self) -> dict[int, list[int]]:
        chosen = [s for s, n in self.lengths.items() if n < LONGEST and self.chance(0.6)]
        return {s: [0] * self.random.choice([0, 1, 1, 1, 2, 6]) for s in chosen}

    def _inputs(self, num_tokens: int) -> tuple[Tensor, ...]:
        with self.faults.paused():
            heads = (NUM_Q_HEADS, SHAPE.num_kv_heads, SHAPE.num_kv_heads)
            size = (SHAPE.num_layers, num_tokens)
            return tuple(
                torch.randn(*size, n, SHAPE.head_dim, generator=self.generator) for n in heads
            )

    def _step(self, given_up: bool = False) -> None:
        new = self._new()
        q, k, v = self._inputs(sum(map(len, new.values())))

        def step(cache: LedgerCache) -> list[Tensor]:
            outs = []
            try:
                with cache.step(new) as plan:
                    for layer in range(SHAPE.num_layers):
                        cache.write(layer, k[layer], v[layer], plan)
                        outs.append(cache.attend(layer, q[layer], plan))
                    if given_up:
                        raise GivenUp
            except GivenUp:
                pass
            return outs

        if self.both(step) and not given_up:
            for seq_id, tokens in new.items():
                self.lengths[seq_id] += len(tokens)

    def _break_off(self) -> None:
        self._step(given_up=True)


class GoesBack(Cache):
    """A cache that can be cut short."""

    rules = (*Cache.rules, "_truncate")

    def _truncate(self) -> None:
        if self.lengths:
            seq_id = self._any()
            keep = self.random.randint(0, self.lengths[seq_id])
            if self.both(lambda cache: cache.truncate(seq_id, keep)):
                self.lengths[seq_id] = keep


class Forks(GoesBack):
    """A cache whose sequences continue one another."""

    rules = (*GoesBack.rules, "_fork", "_reorder")

    def _fork(self) -> None:
        if not self.lengths:
            return
        parent, child = self._any(), self.num_made + 1
        self.num_made = child
        if self.both(lambda cache: cache.fork(parent, child)):
            self.lengths[child] = self.lengths[parent]

    def _reorder(self) -> None:
        live = [s for s in self.lengths if self.chance(0.8)]
        sources: Mapping[int, int] = {s: self.random.choice(live) for s in live}
        self.both(lambda cache: cache.reorder(sources))
        self.lengths.update({s: self.lengths[source] for s, source in sources.items()})


def _kind(base: type[Cache], made: Callable[[], LedgerCache]) -> type[Subject]:
    return subject(base, make=staticmethod(made))


ROWS = {"num_seqs": Cache.most_seqs, "max_seq_len": MOST}
BLOCKS = {"num_blocks": 14, "block_size": 3}
CODES = {"num_blocks": 12, "block_size": 4, "num_seqs": Cache.most_seqs}
SUBJECTS = {
    "contiguous": _kind(Forks, lambda: ContiguousKVCache(SHAPE, **ROWS)),
    "growing": _kind(Forks, lambda: ContiguousKVCache(SHAPE, **ROWS, initial_seq_len=2)),
    "aligned": _kind(
        Forks, lambda: AlignedKVCache(SHAPE, **ROWS, initial_seq_len=3, row_alignment_bytes=64)
    ),
    "paged": _kind(Forks, lambda: PagedKVCache(SHAPE, **BLOCKS)),
    "paged, gathered": _kind(Forks, lambda: PagedKVCache(SHAPE, **BLOCKS, way="gather")),
    "paged, a window": _kind(Forks, lambda: PagedKVCache(SHAPE, **BLOCKS, window=4)),
    "top blocks": _kind(Forks, lambda: TopBlocksKVCache(SHAPE, **BLOCKS, top_k=2)),
    "codes": _kind(Forks, lambda: QuantizedKVCache(SHAPE, **CODES)),
    "codes, written down": _kind(Forks, lambda: QuantizedKVCache(SHAPE, **CODES, way="dequantize")),
    "sinks and a window": _kind(
        GoesBack, lambda: SinkWindowKVCache(SHAPE, Cache.most_seqs, sinks=2, window=4)
    ),
    "a ring": _kind(GoesBack, lambda: RollingKVCache(SHAPE, Cache.most_seqs, window=4)),
    "heavy hitters": _kind(
        Cache, lambda: HeavyHitterKVCache(SHAPE, Cache.most_seqs, budget=6, recent=2)
    ),
    "snap": _kind(
        Cache, lambda: SnapKVCache(SHAPE, Cache.most_seqs, budget=6, observe=2, kernel=3)
    ),
    "cut by heads": _kind(Forks, lambda: HeadShardedKVCache(SHAPE, **BLOCKS, ranks=Alone())),
    "cut by tokens": _kind(Forks, lambda: SequenceShardedKVCache(SHAPE, **BLOCKS, ranks=Alone())),
}
