"""The bytes of every cache: keys and values by slot, whoever owns the slot."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlib.sizes import whole_number


class KVStore:
    """Keys and values of all layers, addressed by slot.

    A slot is `block_id * block_size + offset`. A paged cache gives a sequence many small blocks, a
    contiguous one a single block as long as the longest sequence; reading and writing are the same
    for both. Heads come before the tokens inside a block, so that one head's tokens lie in one run.

    Unwritten slots hold whatever the allocator left there. Nothing may depend on them: the caller
    reads slots that were written, and lengths, not values, decide which those are.

    Args:
        num_layers: L.
        num_blocks: blocks, the null block (if any) included.
        block_size: slots per block.
        num_kv_heads: Hkv.
        head_dim: D.
        dtype: torch dtype of the stored numbers.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1. Nothing is allocated.

    Example:
        >>> store = KVStore(num_layers=1, num_blocks=2, block_size=4, num_kv_heads=1, head_dim=2)
        >>> k = torch.ones(3, 1, 2)
        >>> store.write(0, torch.tensor([0, 1, 4]), k, 2 * k)
        >>> store.read(0, torch.tensor([4]))[1].tolist()
        [[[2.0, 2.0]]]
        >>> store.nbytes
        128
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_layers, num_blocks, num_kv_heads, block_size, head_dim)
        names = ("num_layers", "num_blocks", "num_kv_heads", "block_size", "head_dim")
        for name, size in zip(names, shape, strict=True):
            whole_number(name, size)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.block_size = block_size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored numbers."""
        return self.keys.dtype

    @property
    def device(self) -> torch.device:
        """Where the bytes live."""
        return self.keys.device

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values together."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes, all layers."""
        num_layers, _, num_kv_heads, _, head_dim = self.keys.shape
        return 2 * num_layers * num_kv_heads * head_dim * self.keys.element_size()

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Stores one layer's new keys and values.

        The slots come from a plan and are not checked here: checking them on a GPU would make the
        host wait. What the host knows without waiting (shapes, dtypes, devices) is checked.

        Args:
            layer: which layer.
            slots: [T] int64 on the store's device.
            k: [T, Hkv, D].
            v: [T, Hkv, D].

        Raises:
            ValueError: shape, dtype or device do not fit the store. Nothing is written.
        """
        _, _, num_kv_heads, _, head_dim = self.keys.shape
        expected = (len(slots), num_kv_heads, head_dim)
        for name, new in (("k", k), ("v", v)):
            if tuple(new.shape) != expected or new.dtype != self.dtype or new.device != self.device:
                raise ValueError(
                    f"{name} must be {expected} {self.dtype} on {self.device}, "
                    f"got {tuple(new.shape)} {new.dtype} on {new.device}"
                )
        block, offset = slots // self.block_size, slots % self.block_size
        self.keys[layer, block, :, offset] = k
        self.values[layer, block, :, offset] = v

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Returns copies of the keys and values in the slots, each [T, Hkv, D].

        Args:
            layer: which layer.
            slots: [T] int64 on the store's device.
        """
        block, offset = slots // self.block_size, slots % self.block_size
        return self.keys[layer, block, :, offset], self.values[layer, block, :, offset]

    def view(self, layer: int, block_id: int, length: int) -> tuple[Tensor, Tensor]:
        """Returns the first `length` keys and values of a block without copying, [Hkv, length, D].

        Raises:
            ValueError: the block does not exist or is shorter than `length`.
        """
        _, num_blocks, _, block_size, _ = self.keys.shape
        if not (0 <= block_id < num_blocks and 0 <= length <= block_size):
            raise ValueError(
                f"asked for {length} slots of block {block_id}; there are {num_blocks} blocks of "
                f"{block_size} slots"
            )
        return self.keys[layer, block_id, :, :length], self.values[layer, block_id, :, :length]

    def copy_block(self, src: int, dst: int, num_tokens: int) -> int:
        """Copies the first slots of one block into another, all layers; returns the bytes copied.

        Args:
            src: block to read.
            dst: block to overwrite.
            num_tokens: how many slots.
        """
        for side in (self.keys, self.values):
            side[:, dst, :, :num_tokens] = side[:, src, :, :num_tokens]
        return num_tokens * self.bytes_per_token
