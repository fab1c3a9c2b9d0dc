"""Alignment in bytes: of the row stride and of the base, with the logical width kept."""

import pytest
import torch

from kvlib.sizes import KVShape
from kvlib.tensors.aligned import aligned_empty
from kvlib.tensors.contiguous import AlignedKVCache
from kvlib.tensors.store import KVStore


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alignment", [4, 16, 64, 128, 256, 4096])
@pytest.mark.parametrize("width", [1, 80, 96, 100, 128])
def test_every_row_starts_at_a_multiple_and_keeps_its_width(dtype, alignment, width):
    rows = aligned_empty((2, 3, width), alignment, dtype, "cpu")
    assert tuple(rows.shape) == (2, 3, width)
    assert rows.stride(-1) == 1
    assert all(row.data_ptr() % alignment == 0 for block in rows for row in block)
    stride = rows.stride(1) * dtype.itemsize
    assert stride % alignment == 0
    assert 0 <= stride - width * dtype.itemsize < alignment


@pytest.mark.parametrize(
    "width, dtype, stride",
    [(100, torch.float32, 512), (96, torch.float16, 256), (128, torch.float32, 512)],
)
def test_padding_is_counted_in_bytes_and_not_in_numbers(width, dtype, stride):
    """A row of 192 bytes (96 float16) is padded to 256 by 64 bytes; of 512 bytes, by none."""
    cache = AlignedKVCache(KVShape(1, 1, width), 1, 4, row_alignment_bytes=256, dtype=dtype)
    assert cache.row_stride_bytes == stride
    assert cache.padding_share == 1 - width * dtype.itemsize / stride


def test_bytes_allocated_include_the_padding():
    """Ten rows of 96 bytes, 128 apart: 1,280 bytes a side, and what it takes to align the base."""
    store = KVStore(1, 10, 1, 1, 24, row_alignment_bytes=64)
    assert store.keys.stride(1) * 4 == 128
    assert 2 * 1280 <= store.nbytes < 2 * (1280 + 64)
    assert store.bytes_per_token == 2 * 96


@pytest.mark.parametrize("alignment", [0, -64, 3, 100, 2])
def test_an_alignment_is_a_power_of_two_of_at_least_one_number(alignment):
    with pytest.raises(ValueError, match="row_alignment_bytes must be"):
        AlignedKVCache(KVShape(1, 1, 8), 1, 4, row_alignment_bytes=alignment)


@pytest.mark.parametrize("alignment", [64.0, True, "64"])
def test_an_alignment_is_a_whole_number(alignment):
    with pytest.raises(TypeError, match="row_alignment_bytes must be a whole number"):
        AlignedKVCache(KVShape(1, 1, 8), 1, 4, row_alignment_bytes=alignment)


def test_bytes_may_be_aligned_to_one():
    assert aligned_empty((2, 3), 1, torch.uint8, "cpu").stride() == (3, 1)


def test_growth_keeps_the_alignment():
    cache = AlignedKVCache(
        KVShape(1, 2, 3), 2, 32, row_alignment_bytes=128, initial_seq_len=1, growth=2.0
    )
    cache.add("a")
    for _ in range(5):
        with cache.step({"a": [0]}) as plan:
            cache.write(0, torch.ones(1, 2, 3), torch.ones(1, 2, 3), plan)
    assert cache.row_len == 8
    assert cache.row_stride_bytes == 128
    assert all(side.data_ptr() % 128 == 0 for side in (cache.store.keys, cache.store.values))


def test_on_the_device_that_was_asked_for(device):
    cache = AlignedKVCache(KVShape(1, 1, 8), 1, 4, row_alignment_bytes=256, device=device)
    assert cache.store.keys.device.type == device.type
    assert cache.store.keys.data_ptr() % 256 == 0


def test_a_scattered_write_lands_in_the_padded_rows():
    store = KVStore(1, 2, 3, 2, 5, row_alignment_bytes=64)
    store.keys.zero_()
    k = torch.arange(20.0).reshape(2, 2, 5)
    store.write(0, torch.tensor([5, 1]), k, k)
    assert torch.equal(store.read(0, torch.tensor([5, 1]))[0], k)
    assert store.keys.count_nonzero() == 19
