"""Random operations on a cache with tiers: full disks, blocks that are lost, failing copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.sizes import KVShape
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tier import Tier
from operation_places import FailingCopies, FailingFiles, FailingHost
from operation_steps import Subject, subject
from operation_tensors import CANARIES, Anywhere, InTensors, content, fill_free

SHAPE, SIZE, BLOCKS, LONGEST = KVShape(num_layers=2, num_kv_heads=1, head_dim=2), 2, 8, 12
BLOCK_BYTES = SIZE * 2 * 2 * 2 * 4
NO_ROOM = (OutOfBlocks, SequenceTooLong)


def rows(tokens: list[int]) -> Tensor:
    """What a model would compute: each token's key depends on all tokens before it; [T, 1, 2]."""
    numbers, total = [], 0
    for token in tokens:
        total = (total * 7 + token) % 10007
        numbers.append(total)
    return torch.tensor(numbers, dtype=torch.float32).view(-1, 1, 1).expand(-1, 1, 2)


class Tiered(Subject):
    """Texts with equal beginnings, above a host with room for four blocks and a second place.

    What is held must be what the tokens say, whatever was evicted, lost or never written.
    """

    fault_share, share = 0.2, 0.01
    rules = (
        *("_begin", "_begin", "_step", "_step", "_step", "_break_off"),
        *("_free", "_fork", "_truncate", "_swap_out", "_swap_in", "_swap_in", "_disks"),
    )
    # A prompt that begins, and a failed arrival that ends it, are several calls.
    partial = frozenset({"_begin", "_step", "_swap_out", "_break_off"})
    below: Callable[[str], Any] = staticmethod(lambda folder: FailingHost())

    def build(self) -> None:
        self.faults = Anywhere(self.random)
        self.folder = TemporaryDirectory()
        self.places = [FailingHost(), type(self).below(self.folder.name)]
        for place in self.places:
            place.random = Random(self.random.random())
        tiers = [
            (Tier("host", 4 * BLOCK_BYTES, 10), self.places[0]),
            (Tier("below", 9 * BLOCK_BYTES, 1), self.places[1]),
        ]
        self.cache = TieredKVCache(SHAPE, BLOCKS, SIZE, tiers=tiers, policy="write_back")
        self.copies = FailingCopies(self.cache, self.random)
        self.texts: dict[int, list[int]] = {}
        self.swapped: dict[int, list[int]] = {}
        self.num_made = 0

    def state(self) -> Any:
        ledger = self.cache.ledger
        return {s: ledger.length(s) for s in ledger.seq_ids}, self.cache.swapped, ledger.num_free

    def check(self) -> None:
        with self.faults.paused():
            self.cache.check()
            self.cache.lane.check()
            for place in self.places:
                if isinstance(place, HostBlocks):
                    place.check()
            ledger = self.cache.ledger
            live = {s: ledger.length(s) for s in ledger.seq_ids}
            assert live == {s: len(t) for s, t in self.texts.items()}, f"lengths are {live}"
            waiting = {s: len(t) for s, t in self.swapped.items()}
            assert waiting == self.cache.swapped, f"{self.cache.swapped} are swapped out"
            self.cache._settle()
            lost = self.cache.pending.arriving  # copies that failed: whoever attends is told
            for seq_id, text in self.texts.items():
                right = rows(text)
                if lost.intersection(ledger.table(seq_id)):
                    continue
                for layer, (k, v) in enumerate(_pairs(content(self.cache, seq_id))):
                    sound = torch.equal(k, right + layer) and torch.equal(v, -right)
                    assert sound, f"{seq_id} does not hold what its tokens say"

    def finish(self) -> None:
        for seq_id in [*self.texts, *self.swapped]:
            self.cache.free(seq_id)
        self.texts, self.swapped = {}, {}
        self.check()
        assert self.cache.ledger.num_free == BLOCKS, "nobody lives, and a block is held"
        self.cache.close()
        self.folder.cleanup()

    def do(self, name: str, *, faulty: bool) -> None:
        with InTensors(self.faults):
            super().do(name, faulty=faulty)
        if self.chance(0.5):
            self.cache.drain()
            fill_free(self.cache, self.random.choice(CANARIES))

    def _any(self, among: dict[int, list[int]]) -> int:
        return self.random.choice([*among])

    def _begin(self) -> None:
        if len(self.texts) > 4:
            return
        prompt = [self.random.choice((1, 2)) for _ in range(self.random.randint(3, 7))]
        seq_id = self.num_made = self.num_made + 1
        self.cache.add(seq_id, prompt)
        held = self.cache.length(seq_id)
        assert held % SIZE == 0 and held < len(prompt), f"{held} of {len(prompt)} came up"
        self.texts[seq_id] = prompt[:held]
        if self.chance(0.3):  # what comes up has arrived, or has not, before anybody looks
            self.cache.drain()
        if self.chance(0.3):
            return
        self._forward(seq_id, prompt[held:])

    def _step(self) -> None:
        if self.texts:
            self._forward(self._any(self.texts), [self.random.choice((1, 2))])

    def _break_off(self) -> None:
        if not self.texts:
            return
        seq_id = self._any(self.texts)
        with self.faults.paused():
            wrong = torch.full((1, 1, 2), -2.0)
        try:
            plan = self.cache.plan({seq_id: [1]})
        except NO_ROOM:
            return
        except MemoryError:
            self._end(seq_id)
            return
        try:
            for layer in range(self.random.randint(0, 2)):
                self.cache.write(layer, wrong, wrong, plan)
        except MemoryError:
            pass
        finally:
            self.cache.abort(plan)

    def _forward(self, seq_id: int, new: list[int]) -> None:
        text = self.texts[seq_id] + new
        if len(text) > LONGEST:
            return
        with self.faults.paused():
            k = rows(text)[-len(new) :]
        try:
            with self.cache.step({seq_id: new}) as plan:
                for layer in range(2):
                    self.cache.write(layer, k + layer, -k, plan)
                    out = self.cache.attend(layer, k, plan)
                    assert bool(torch.isfinite(out).all()), "attention saw what nobody wrote"
        except NO_ROOM:
            return
        except MemoryError:  # what should have come up did not
            self._end(seq_id)
            return
        self.texts[seq_id] = text

    def _end(self, seq_id: int) -> None:
        self.cache.free(seq_id)
        del self.texts[seq_id]

    def _free(self) -> None:
        if self.texts or self.swapped:
            seq_id = self._any(self.texts | self.swapped)
            self.cache.free(seq_id)
            self.texts.pop(seq_id, None)
            self.swapped.pop(seq_id, None)

    def _fork(self) -> None:
        if self.texts and len(self.texts) < 5:
            parent, self.num_made = self._any(self.texts), self.num_made + 1
            self.cache.fork(parent, self.num_made)
            self.texts[self.num_made] = list(self.texts[parent])

    def _truncate(self) -> None:
        if self.texts:
            seq_id = self._any(self.texts)
            keep = self.random.randint(0, len(self.texts[seq_id]))
            self.cache.truncate(seq_id, keep)
            self.texts[seq_id] = self.texts[seq_id][:keep]

    def _swap_out(self) -> None:
        if self.texts:
            seq_id = self._any(self.texts)
            try:
                self.cache.swap_out(seq_id)
            except OutOfBlocks:
                return
            except MemoryError:
                self._end(seq_id)
                return
            self.swapped[seq_id] = self.texts.pop(seq_id)

    def _swap_in(self) -> None:
        if self.swapped:
            seq_id = self._any(self.swapped)
            try:
                length = self.cache.swap_in(seq_id)
            except OutOfBlocks:
                return
            self.texts[seq_id] = self.swapped.pop(seq_id)[:length]

    def _disks(self) -> None:
        for place in self.places:
            place.full = self.chance(0.2)
        self.copies.fail = self.chance(0.4)


def _pairs(sides: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(sides[::2], sides[1::2], strict=True))


SUBJECTS = {
    "tiers": Tiered,
    "tiers, a disk": subject(
        Tiered, below=staticmethod(lambda folder: FailingFiles(Path(folder) / "blocks"))
    ),
}
