"""Blocks of codes in memory: keys and values of all layers, each side in its own format."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvlib.precision import Precision
from kvlib.sizes import KVShape
from kvlib.tensors.codes import decode, encode
from kvlib.tensors.huge_pages import ask_for_huge_pages


class CodeStore:
    """Keys and values as bytes, `[num_layers, num_blocks, num_kv_heads, bytes of a block]` each.

    Args:
        shape: layers, KV heads and head size.
        num_blocks: blocks.
        block_size: tokens per block.
        formats: of keys and of values.
        dtype: of the numbers that are read back.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: the groups of a format do not divide what they cut. Nothing is
            allocated.

    Example:
        >>> store = CodeStore(KVShape(1, 1, 4), 2, 2, (Precision(4), Precision(2)))
        >>> store.put(0, 0, [1], torch.tensor([[[[0.0, 1, 2, 15], [0, 2, 3, 30]]]]))
        12
        >>> store.get(0, 0, [1]).tolist()
        [[[[0.0, 1.0, 2.0, 15.0], [0.0, 2.0, 4.0, 30.0]]]]
    """

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        block_size: int,
        formats: tuple[Precision, Precision],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        layouts = [each.layout(shape.head_dim, block_size) for each in formats]
        lead = (shape.num_layers, num_blocks, shape.num_kv_heads)
        self.sides = tuple(
            torch.empty(*lead, layout.block_bytes, dtype=torch.uint8, device=device)
            for layout in layouts
        )
        for side in self.sides:
            ask_for_huge_pages(side)
        self.formats, self.block_size, self.dtype = formats, block_size, dtype
        self.head_dim = shape.head_dim

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return self.sides[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, codes and scales of both sides."""
        return sum(side.nbytes for side in self.sides)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in one layer, keys and values."""
        return self.nbytes // (len(self.sides[0]) * self.num_blocks)

    def put(self, side: int, layers: int | slice, blocks: Sequence[int], x: Tensor) -> int:
        """Codes full blocks; returns the bytes written.

        Args:
            side: 0 for keys, 1 for values.
            layers: which layer, or a slice of them.
            blocks: `n` block ids.
            x: [n, Hkv, B, D], with the layers before it if there are several.
        """
        found = encode(x, self.formats[side])
        self.sides[side][layers][..., list(blocks), :, :] = found
        return found.nbytes

    def get(self, side: int, layers: int | slice, blocks: Sequence[int]) -> Tensor:
        """Returns blocks in full precision, [n, Hkv, B, D], with the layers before it if several.

        Args:
            side: 0 for keys, 1 for values.
            layers: which layer, or a slice of them.
            blocks: `n` block ids.
        """
        data = self.sides[side][layers][..., list(blocks), :, :]
        return decode(data, self.formats[side], self.head_dim, self.block_size, self.dtype)

    def check(self) -> None:
        """Proves that each side has a place for every block, of the bytes that its format takes.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        for name, side, precision in zip("kv", self.sides, self.formats, strict=True):
            needed = precision.layout(self.head_dim, self.block_size).block_bytes
            assert side.dtype == torch.uint8, f"codes of {name} are {side.dtype}, and no bytes"
            assert side.shape[3] == needed, f"{name}: {side.shape[3]} bytes a block, not {needed}"
        k, v = self.sides
        assert k.shape[:3] == v.shape[:3], f"{tuple(k.shape)} codes of k, {tuple(v.shape)} of v"
        places = {side.untyped_storage().data_ptr() for side in self.sides}
        assert len(places) == 2 or k.is_meta, "codes of keys and values share their bytes"

    def refuse(self, k: Tensor, v: Tensor, num_tokens: int) -> None:
        """Refuses keys and values that no block could take.

        Raises:
            ValueError: they are not [num_tokens, Hkv, D] of the store's dtype, or a number is not
                finite or beyond what the format's scales hold. On a GPU the numbers are checked
                there, and the error comes with the next call that waits.
        """
        expected = (num_tokens, self.sides[0].shape[2], self.head_dim)
        for name, new, precision in zip(("k", "v"), (k, v), self.formats, strict=True):
            if tuple(new.shape) != expected or new.dtype != self.dtype:
                raise ValueError(
                    f"{name} must be {expected} {self.dtype}, got {tuple(new.shape)} {new.dtype}"
                )
            if not new.numel():
                continue
            # Not `largest > limit`, which NaN would pass.
            # And in float64: a narrower type would round the limit, perhaps up.
            fits = new.abs().amax().double() <= precision.largest
            if new.device.type != "cpu":
                torch._assert_async(fits)
            elif not fits:
                raise ValueError(
                    f"{name} must be finite and within {precision.largest:g}, what scales of "
                    f"{precision.scale_dtype} can hold, got {new.abs().amax().item():g}"
                )
