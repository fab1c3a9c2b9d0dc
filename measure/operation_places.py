"""What goes wrong below a device: places fill up, blocks are lost, files torn, copies refused."""

from __future__ import annotations

import errno
from random import Random

from torch import Tensor

from kvlib.tensors.block_bytes import LostBlock
from kvlib.tensors.block_files import BlockFiles
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.tiered import TieredKVCache


class Failing:
    """Puts fail while it is full; some blocks turn out lost."""

    random: Random
    full = False
    num_lost = 0

    def put(self, key: bytes, k: Tensor, v: Tensor) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().put(key, k, v)

    def get(self, key: bytes) -> tuple[Tensor, Tensor]:
        if self.random.random() < 0.03:
            self.num_lost += 1
            raise LostBlock("lost on purpose")
        return super().get(key)


class FailingHost(Failing, HostBlocks):
    """On the host."""


class FailingFiles(Failing, BlockFiles):
    """On a disk, where a file may be torn as well."""

    def get(self, key: bytes) -> tuple[Tensor, Tensor]:
        path = self.path(key)
        if path.exists() and self.random.random() < 0.05:
            data = path.read_bytes()
            path.write_bytes(data[: self.random.randrange(len(data))])
        return super().get(key)


class FailingCopies:
    """While `fail` is set, nothing comes down from a cache's device, and half of it comes up."""

    def __init__(self, cache: TieredKVCache, random: Random) -> None:
        self.fail = False
        read, send_up = cache._read, cache._send_up
        cache._read = lambda *which: self._refused() or read(*which)
        cache._send_up = lambda *what: (
            cache.lane.submit(self._refused)
            if self.fail and random.random() < 0.5
            else send_up(*what)
        )

    def _refused(self) -> None:
        if self.fail:
            raise MemoryError("the device gives nothing out")
