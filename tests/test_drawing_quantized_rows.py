"""The same memory in fewer bits: the bytes of a real cache, and never fewer tokens."""

import pytest
import torch

from kvlib.show.drawings import find
from kvlib.show.drawings.quantized_rows import FORMATS, NUM_SEQS, SHAPE, admit, blocks_in, bytes_of
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.quantized import QuantizedKVCache


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_are_those_of_a_real_cache(name: str) -> None:
    options = {"dtype": torch.float16, "way": "dequantize"}
    if FORMATS[name] is None:
        cache = PagedKVCache(SHAPE, 5, 32, dtype=torch.float16, way="gather")
    else:
        keys, values = FORMATS[name]
        sizes = {"keys": keys, "values": values, "num_seqs": NUM_SEQS}
        cache = QuantizedKVCache(SHAPE, 5, 32, **sizes, **options)
    assert cache.nbytes == bytes_of(name, 5)


@pytest.mark.parametrize("megabytes", [12, 18, 24, 48])
def test_what_fits_fits_and_one_block_more_would_not(megabytes: int) -> None:
    for name in FORMATS:
        blocks = blocks_in(name, megabytes)
        assert bytes_of(name, blocks) <= megabytes * 10**6 < bytes_of(name, blocks + 1)


def test_fewer_bits_store_more_tokens_of_the_same_requests() -> None:
    held = [sum(r.held for r in admit(name, 24)) for name in ("float16", "int8", "int4", "int2")]
    assert held == sorted(held) and held[-1] > 3 * held[0]


def test_the_picture_counts_rows_and_scales() -> None:
    svg = find("quantized_cache")(megabytes=24, precision="int8")
    plain, coded = blocks_in("float16", 24), blocks_in("int8", 24)
    assert f"{coded / plain:.2f} times the blocks of float16" in svg
    assert coded / plain < 16 / 8.75
