"""The bytes of every cache: keys and values by slot, whoever owns the slot."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlib.sizes import whole_number
from kvlib.tensors.aligned import aligned_empty


class KVStore:
    """Keys and values of all layers, addressed by slot.

    A slot is `block_id * block_size + offset`. A paged cache gives a sequence many small blocks, a
    contiguous one a single block as long as the longest sequence; reading and writing are the same
    for both. Heads come before the tokens inside a block, so that one head's tokens lie in one run.

    Unwritten slots hold whatever the allocator left there. Nothing may depend on them: the caller
    reads slots that were written, and lengths, not values, decide which those are.

    Args:
        num_layers: the layers, L.
        num_blocks: blocks, the null block (if any) included.
        block_size: slots per block.
        num_kv_heads: Hkv.
        head_dim: numbers of a head, D.
        dtype: torch dtype of the stored numbers.
        device: where the bytes live.
        row_alignment_bytes: if given, each row of D numbers starts at a multiple of it; see
            `aligned_empty`.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or no such alignment is
            possible. Nothing is allocated.

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
        row_alignment_bytes: int | None = None,
    ) -> None:
        shape = (num_layers, num_blocks, num_kv_heads, block_size, head_dim)
        names = ("num_layers", "num_blocks", "num_kv_heads", "block_size", "head_dim")
        for name, size in zip(names, shape, strict=True):
            whole_number(name, size)
        if row_alignment_bytes is None:
            row_alignment_bytes = dtype.itemsize
        self.keys, self.values = (
            aligned_empty(shape, row_alignment_bytes, dtype, device) for _ in range(2)
        )
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
        """Bytes allocated for keys and values together, padding included."""
        return sum(side.untyped_storage().nbytes() for side in (self.keys, self.values))

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token brings, all layers, without padding."""
        num_layers, _, num_kv_heads, _, head_dim = self.keys.shape
        return 2 * num_layers * num_kv_heads * head_dim * self.keys.element_size()

    def write(
        self, layer: int, slots: Tensor, k: Tensor, v: Tensor, *, planned: bool = False
    ) -> None:
        """Stores one layer's new keys and values.

        Args:
            layer: which layer.
            slots: [T] int64 on the store's device.
            k: [T, Hkv, D].
            v: [T, Hkv, D].
            planned: the slots come from an open plan of the ledger, which names none outside the
                store; then they are not looked at again in every layer.

        Raises:
            ValueError: layer or slots are out of range (negative ones too, which an index would
                count from the end), or shape, dtype or device do not fit. Nothing is written. Slots
                on a GPU are checked there, so that the host need not wait: the error of a wrong
                one comes with the next call that waits.
        """
        self.require(layer, len(slots), k, v)
        if not planned:
            self._check(slots)
        block, offset = slots // self.block_size, slots % self.block_size
        self.keys[layer, block, :, offset] = k
        self.values[layer, block, :, offset] = v

    def require(self, layer: int, num_tokens: int, k: Tensor, v: Tensor) -> None:
        """Refuses a layer, or keys and values, that `write` could not take.

        Raises:
            ValueError: there is no such layer, or k and v are not both [num_tokens, Hkv, D] of the
                store's dtype and on its device.
        """
        self._require_layer(layer)
        _, _, num_kv_heads, _, head_dim = self.keys.shape
        expected = (num_tokens, num_kv_heads, head_dim)
        for name, new in (("k", k), ("v", v)):
            if tuple(new.shape) != expected or new.dtype != self.dtype or new.device != self.device:
                raise ValueError(
                    f"{name} must be {expected} {self.dtype} on {self.device}, "
                    f"got {tuple(new.shape)} {new.dtype} on {new.device}"
                )

    def require_queries(self, q: Tensor, num_tokens: int) -> None:
        """Refuses queries that are not one for each new token of a step.

        A row that belongs to no token would come back as the allocator left it.

        Raises:
            ValueError: they are not [num_tokens, Hq, D] of the store's dtype and on its device,
                with Hq a multiple of Hkv.
        """
        num_kv_heads, head_dim = self.keys.shape[2], self.keys.shape[4]
        fits = q.dim() == 3 and len(q) == num_tokens and q.shape[2] == head_dim
        if not fits or q.dtype != self.dtype or q.device != self.device:
            raise ValueError(
                f"q must be [{num_tokens}, Hq, {head_dim}] {self.dtype} on {self.device}, "
                f"got {tuple(q.shape)} {q.dtype} on {q.device}"
            )
        if not q.shape[1] or q.shape[1] % num_kv_heads:
            raise ValueError(
                f"query heads must be a multiple of KV heads: {q.shape[1]} and {num_kv_heads}"
            )

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Returns copies of the keys and values in the slots, each [T, Hkv, D].

        Args:
            layer: which layer.
            slots: [T] int64 on the store's device.

        Raises:
            ValueError: layer or slots are out of range, as for `write`.
        """
        self._require_layer(layer)
        self._check(slots)
        block, offset = slots // self.block_size, slots % self.block_size
        return self.keys[layer, block, :, offset], self.values[layer, block, :, offset]

    def view(self, layer: int, block_id: int, length: int) -> tuple[Tensor, Tensor]:
        """Returns the first `length` keys and values of a block without copying, [Hkv, length, D].

        Raises:
            ValueError: the layer or the block does not exist, or it is shorter than `length`.
        """
        self._require_layer(layer)
        _, num_blocks, _, block_size, _ = self.keys.shape
        if not (0 <= block_id < num_blocks and 0 <= length <= block_size):
            raise ValueError(
                f"asked for {length} slots of block {block_id}; there are {num_blocks} blocks of "
                f"{block_size} slots"
            )
        return self.keys[layer, block_id, :, :length], self.values[layer, block_id, :, :length]

    def copy_block(
        self, src: int, dst: int, num_tokens: int, *, source: KVStore | None = None
    ) -> int:
        """Copies the first slots of a block into another, all layers; returns the bytes copied.

        Args:
            src: block to read.
            dst: block to overwrite.
            num_tokens: how many slots.
            source: the store that `src` is a block of; this one by default.

        Raises:
            ValueError: a block does not exist or is shorter than `num_tokens`. Nothing is copied.
        """
        source = self if source is None else source
        source.view(0, src, num_tokens)
        self.view(0, dst, num_tokens)
        for mine, its in ((self.keys, source.keys), (self.values, source.values)):
            mine[:, dst, :, :num_tokens] = its[:, src, :, :num_tokens]
        return num_tokens * self.bytes_per_token

    def check(self) -> None:
        """Proves that keys and values are alike, share no byte, and lie where they should.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        k, v = self.keys, self.values
        alike = (k.shape, k.dtype, k.device) == (v.shape, v.dtype, v.device)
        assert alike, f"keys are {tuple(k.shape)} {k.dtype}, values {tuple(v.shape)} {v.dtype}"
        assert k.shape[3] == self.block_size, f"{k.shape[3]} slots in a block of {self.block_size}"
        assert k.stride(4) == 1, f"a row of D numbers is no run: {k.stride()}"
        places = {side.untyped_storage().data_ptr() for side in (k, v)}
        assert len(places) == 2 or k.is_meta, "keys and values share their bytes"

    def _require_layer(self, layer: int) -> None:
        num_layers = len(self.keys)
        if not 0 <= layer < num_layers:
            raise ValueError(f"layers are 0 to {num_layers - 1}, asked for {layer}")

    def _check(self, slots: Tensor) -> None:
        """Refuses slots that are not there."""
        num_slots = self.keys.shape[1] * self.block_size
        if slots.dim() != 1 or slots.dtype != torch.int64 or slots.device != self.device:
            raise ValueError(
                f"slots must be [T] torch.int64 on {self.device}, "
                f"got {tuple(slots.shape)} {slots.dtype} on {slots.device}"
            )
        outside = (slots < 0) | (slots >= num_slots)
        if slots.device.type != "cpu":
            torch._assert_async(~outside.any())
        elif outside.any():
            bad = slots[outside].tolist()
            raise ValueError(f"slots are 0 to {num_slots - 1}, asked for {bad[:8]}")
