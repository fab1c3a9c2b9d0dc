"""One block's bytes outside of the cache: what a lower tier keeps, and how it travels.

Axis letters: `L` layers, `Hkv` KV heads, `B` tokens of a block, `D` head size.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Protocol

import torch
from safetensors.torch import load, save
from torch import Tensor

from kvlib.files import parse_json

# More than any block has: an 80-layer model of 8 KV heads takes 168 MB for 512 tokens in 16 bits.
MAX_PACKED_BYTES = 2**30

# Where a packed block carries its own checksum; while it is computed, zeros stand there.
_LABEL = b'"sha256":"'
_ZEROS = b"0" * 64


class LostBlock(LookupError):
    """A block that was kept cannot be given back as it was: damaged, torn, or its peer is gone.

    Nothing of it may be used. The caller recomputes the block's tokens.
    """


class BlockBytes(Protocol):
    """A place for whole blocks, each under the key that names its tokens and all before them.

    A block is its keys and its values, each [L, Hkv, B, D], every token of it written. Keys are
    those of `kvlib.content.TokenContent`: equal keys mean equal blocks, so a second `put` under a
    key may keep the first bytes.
    """

    def put(self, key: bytes, k: Tensor, v: Tensor) -> None:
        """Keeps a copy of a block; once this returns, `get` gives these bytes or `LostBlock`.

        Raises:
            ValueError: this is no block; see `require_block`.
            OSError: there is no room or no way to keep it. Then nothing is kept, half or whole.
        """
        ...

    def get(self, key: bytes) -> tuple[Tensor, Tensor]:
        """Returns a block's keys and values, verified before anything of them is used.

        The caller may not write into them.

        Raises:
            KeyError: there is no such block.
            LostBlock: there was one and it cannot be trusted or reached. From then on it is no
                longer offered.
        """
        ...

    def __contains__(self, key: bytes) -> bool:
        """Answers whether `get` may be tried; it can still find the block lost."""
        ...

    def remove(self, key: bytes) -> None:
        """Forgets a block; one that is not there is no error."""
        ...


def require_block(k: Tensor, v: Tensor) -> None:
    """Refuses what is no block.

    Raises:
        ValueError: keys and values are not both [L, Hkv, B, D] of one shape and dtype, or empty.
    """
    shapes = tuple(k.shape), tuple(v.shape)
    if len(k.shape) != 4 or not k.numel() or shapes[0] != shapes[1] or k.dtype != v.dtype:
        raise ValueError(
            "a block is k and v [L, Hkv, B, D], equal in shape and dtype and not empty, got "
            f"{shapes[0]} {k.dtype} and {shapes[1]} {v.dtype}"
        )


def pack(key: bytes, k: Tensor, v: Tensor) -> bytes:
    """Returns a block as the bytes of a safetensors file that carries its key and its checksum.

    The checksum, SHA-256, covers every byte, header included: it is computed with zeros in its own
    place. The result is an ordinary safetensors file.

    Args:
        key: the block's name; `unpack` refuses the bytes under any other.
        k: [L, Hkv, B, D].
        v: [L, Hkv, B, D].

    Raises:
        ValueError: this is no block, or one of more than `MAX_PACKED_BYTES`.

    Example:
        >>> k = torch.arange(4.0).view(1, 1, 2, 2)
        >>> data = pack(b"name", k, k + 1)
        >>> unpack(b"name", data)[1].flatten().tolist()
        [1.0, 2.0, 3.0, 4.0]
        >>> try:
        ...     unpack(b"name", data[:-1])
        ... except LostBlock as error:
        ...     print(error)
        a block is used only if its SHA-256 fits: 6e616d65 does not, 215 bytes
    """
    require_block(k, v)
    metadata = {"key": key.hex(), "sha256": _ZEROS.decode()}
    data = save({"kv": torch.stack([k.detach(), v.detach()]).cpu()}, metadata=metadata)
    if len(data) > MAX_PACKED_BYTES:
        raise ValueError(
            f"a block takes at most {MAX_PACKED_BYTES:,} bytes, this one {len(data):,}"
        )
    at = _checksum_at(data)
    return data[:at] + sha256(data).hexdigest().encode() + data[at + len(_ZEROS) :]


def unpack(key: bytes, data: bytes) -> tuple[Tensor, Tensor]:
    """Returns the keys and values that `pack` was given; parses nothing before it is verified.

    Whoever can write the bytes can compute their checksum. So what fits may still be no block; then
    it is as lost as what does not.

    Args:
        key: the name under which the block is wanted.
        data: what `pack` returned, or what has become of it.

    Raises:
        LostBlock: any byte differs from what `pack` returned, it is no block, or one with another
            name.
    """
    at = _checksum_at(data)
    stored = data[at : at + len(_ZEROS)]
    blank = data[:at] + _ZEROS + data[at + len(_ZEROS) :]
    if at < 0 or sha256(blank).hexdigest().encode() != stored:
        raise LostBlock(
            f"a block is used only if its SHA-256 fits: {key.hex()[:8]} does not, {len(data)} bytes"
        )
    try:
        name = parse_json(data[8 : _header_end(data)])["__metadata__"]["key"]
        if name != key.hex():
            raise LostBlock(f"asked for block {key.hex()[:8]}, these bytes are block {name:.8}")
        k, v = load(data)["kv"]
        require_block(k, v)
    except LostBlock:
        raise
    except Exception as error:  # a header of anybody's making, read by two libraries
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise LostBlock(f"what is kept as block {key.hex()[:8]} is no block: {why}") from error
    return k, v


def _header_end(data: bytes) -> int:
    return 8 + struct.unpack("<Q", data[:8])[0]


def _checksum_at(data: bytes) -> int:
    """Where the checksum starts; -1 where there is none. Looks into the header only."""
    if len(data) < 8:
        return -1
    at = data.find(_LABEL, 8, min(_header_end(data), len(data)))
    return -1 if at < 0 else at + len(_LABEL)
