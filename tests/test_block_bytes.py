"""A block outside of the cache: packed with its name and its checksum, or refused."""

import pytest
import torch

from kvlib.tensors.block_bytes import LostBlock, pack, require_block, unpack


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
