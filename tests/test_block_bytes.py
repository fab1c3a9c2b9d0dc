"""A block outside of the cache: packed with its name and its checksum, or refused."""

import re
from hashlib import sha256

import pytest
import torch

from kvlib.tensors import block_bytes, block_files
from kvlib.tensors.block_bytes import LostBlock, pack, require_block, unpack
from kvlib.tensors.block_files import BlockFiles


def block(fill=1.0, shape=(1, 1, 2, 2), dtype=torch.float32):
    k = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype) + fill
    return k, -k


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_block_comes_back_as_it_was(dtype, device):
    k, v = (side.to(device) for side in block(shape=(3, 2, 4, 5), dtype=dtype))
    again = unpack(b"name", pack(b"name", k, v))
    for side, mine in zip(again, (k, v), strict=True):
        assert side.dtype == dtype and torch.equal(side, mine.cpu())


def test_keys_and_values_may_be_one_tensor_and_need_not_be_contiguous():
    k = torch.arange(8.0).view(2, 2, 2, 1).transpose(0, 1)
    assert torch.equal(unpack(b"n", pack(b"n", k, k))[1], k)


def test_cut_at_any_length_it_is_lost():
    data = pack(b"name", *block())
    for length in range(len(data)):
        with pytest.raises(LostBlock):
            unpack(b"name", data[:length])


def test_any_byte_changed_and_it_is_lost():
    data = pack(b"name", *block())
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            with pytest.raises(LostBlock):
                unpack(b"name", damaged)


@pytest.mark.parametrize(
    "data", [b"", b"GGUF" + bytes(300), bytes(300), b"\xff" * 300], ids=["empty", "gguf", "0", "ff"]
)
def test_what_is_no_block_at_all_is_lost(data):
    with pytest.raises(LostBlock, match=f"SHA-256 fits: 6e does not, {len(data)} bytes"):
        unpack(b"n", data)


def test_more_bytes_behind_it_are_no_block():
    with pytest.raises(LostBlock):
        unpack(b"name", pack(b"name", *block()) + b"\0")


def test_a_sound_block_under_another_name_is_lost():
    with pytest.raises(LostBlock, match="asked for block 62, these bytes are block 61"):
        unpack(b"b", pack(b"a", *block()))


def test_what_is_no_pair_of_equal_sides_is_refused():
    k, v = block()
    for sides in ((k, v[:, :, :1]), (k, v.half()), (k[0], v[0]), (k[:0], v[:0])):
        with pytest.raises(ValueError, match="a block is k and v"):
            require_block(*sides)
        with pytest.raises(ValueError, match="a block is k and v"):
            pack(b"name", *sides)


def sealed(header: bytes, rest: bytes = b"") -> bytes:
    """Bytes of anybody's making with the checksum that fits."""
    header += b'"sha256":"' + b"0" * 64
    data = len(header).to_bytes(8, "little") + header + rest
    return data.replace(b"0" * 64, sha256(data).hexdigest().encode())


def resealed(change):
    """A block whose header was changed, with a checksum that fits again."""
    data = pack(b"n", *block())
    end = 8 + int.from_bytes(data[:8], "little")
    header = re.sub(rb'"sha256":"\w{64}"', b'"sha256":"' + b"0" * 64 + b'"', data[8:end])
    text = change(header)
    data = len(text).to_bytes(8, "little") + text + data[end:]
    return data.replace(b"0" * 64, sha256(data).hexdigest().encode())


def test_a_changed_block_that_is_sealed_again_is_what_it_says():
    assert unpack(b"n", resealed(lambda header: header))[0].shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    "data",
    [
        sealed(b""),
        sealed(b"[" * 100_000),
        sealed(b'{"a":' * 100_000),
        sealed(b"\xff"),
        resealed(lambda header: header.replace(b"__metadata__", b"__mEtadata__")),
        resealed(lambda header: header.replace(b'"key":"6e"', b'"key":["6e"]')),
        resealed(lambda header: header.replace(b'"key":"6e"', b'"key":"6e","key":"6e"')),
        resealed(lambda header: header.replace(b'"kv"', b'"vk"')),
        resealed(lambda header: header.replace(b"[2,1,1,2,2]", b"[1,2,1,2,2]")),
        resealed(lambda header: header.replace(b"[2,1,1,2,2]", b"[2,1,2,2]")),
        resealed(lambda header: header.replace(b"[2,1,1,2,2]", b"[8]")),
        resealed(lambda header: header.replace(b"[2,1,1,2,2]", b"[2,1,1,2,999]")),
        resealed(lambda header: header.replace(b"F32", b"F99")),
        resealed(lambda header: header + b"{}"),
    ],
)
def test_a_checksum_that_fits_makes_no_block(data):
    """Whoever can write the bytes can compute it."""
    with pytest.raises(LostBlock, match="is no block") as error:
        unpack(b"n", data)
    assert len(str(error.value)) < 400


def test_a_block_beyond_any_size_is_neither_packed_nor_read(monkeypatch, tmp_path):
    k, v = block()
    blocks = BlockFiles(tmp_path)
    blocks.put(b"n", k, v)
    size = blocks.path(b"n").stat().st_size
    for module in (block_bytes, block_files):
        monkeypatch.setattr(module, "MAX_PACKED_BYTES", size - 1)
    with pytest.raises(ValueError, match=f"takes at most {size - 1} bytes, this one {size}"):
        pack(blocks.name(b"n"), k, v)
    with pytest.raises(LostBlock, match=rf"at most {size - 1} bytes: the file of \w+ has {size}"):
        blocks.get(b"n")
    assert b"n" not in blocks
