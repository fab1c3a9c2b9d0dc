"""Blocks in the memory of the host, from where a device can fetch them by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlib.tensors.block_bytes import require_block


class HostBlocks:
    """Keeps blocks in host memory; *pinned* where a device is to copy from there unattended.

    An operating system may move or swap out ordinary memory at any time, so a device's copy engine
    cannot read it: the driver copies it to a pinned buffer first, and the host waits. Pinned memory
    stays where it is. It is also taken away from everybody else, so pin no more than is needed.

    Each block is a tensor of its own. One that was removed lives on while a copy of it is under
    way, so that nothing else can be written in its place.

    Args:
        pinned: whether to pin; needs a CUDA device.

    Raises:
        RuntimeError: pinned memory was asked for without a CUDA device.

    Example:
        >>> blocks = HostBlocks()
        >>> k = torch.ones(1, 1, 4, 2)
        >>> blocks.put(b"name", k, 2 * k); k.zero_().sum().item()
        0.0
        >>> blocks.get(b"name")[0].sum().item(), blocks.nbytes
        (8.0, 64)
    """

    def __init__(self, *, pinned: bool = False) -> None:
        if pinned and not torch.cuda.is_available():
            raise RuntimeError(
                "pinned memory is for a CUDA device, this machine has none: pinned=False"
            )
        self.pinned = pinned
        self._blocks: dict[bytes, Tensor] = {}

    def __len__(self) -> int:
        """Blocks that are there."""
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        """Answers whether the block is there."""
        return key in self._blocks

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in list(self._blocks.values()))

    def check(self) -> None:
        """Proves that every block is keys and values on the host, and shares its bytes with none.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        blocks = list(self._blocks.values())
        for kept in blocks:
            assert kept.is_cpu and kept.is_contiguous(), "a block that is not one run on the host"
            require_block(*kept)
        places = {kept.untyped_storage().data_ptr() for kept in blocks}
        assert len(places) == len(blocks), "two blocks in one place"

    def put(self, key: bytes, k: Tensor, v: Tensor) -> None:
        """Copies a block to the host; on CUDA in the order of the current stream.

        From pinned memory the host must not read before that stream has come so far.

        Raises:
            ValueError: this is no block. Nothing changes.
        """
        require_block(k, v)
        kept = torch.empty((2, *k.shape), dtype=k.dtype, pin_memory=self.pinned)
        for mine, its in zip(kept, (k, v), strict=True):
            mine.copy_(its, non_blocking=self.pinned)
        self._blocks[key] = kept

    def get(self, key: bytes) -> tuple[Tensor, Tensor]:
        """Returns views of a block; the caller does not write into them.

        Raises:
            KeyError: there is no such block.
        """
        kept = self._blocks.get(key)
        if kept is None:
            raise KeyError(f"no such block among {len(self)} on the host")
        return kept[0], kept[1]

    def remove(self, key: bytes) -> None:
        """Forgets a block, if it is there."""
        self._blocks.pop(key, None)
