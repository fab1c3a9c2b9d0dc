"""The widgets of caches: what they draw is what a real cache of that size does."""

import pytest

from kvlib import show
from kvlib.show.drawings import paged_rows, quantized_rows
from kvlib.show.drawings.cache_rows import admit, row_bytes
from kvlib.show.real_cache import CacheWidget


@pytest.mark.parametrize("num_seqs", [1, 4])
@pytest.mark.parametrize("cache_size", [256, 1024, 4096])
def test_the_drawing_tells_what_the_real_cache_did(cache_size, num_seqs):
    rows = admit(cache_size, num_seqs)
    real = show.widget("contiguous_cache", cache_size=cache_size, num_seqs=num_seqs).real
    assert real.admitted == sum(row.admitted for row in rows)
    assert real.held_tokens == sum(row.held for row in rows)
    assert real.refused_tokens == sum(row.wanted - row.held for row in rows)
    assert real.allocated_bytes >= num_seqs * cache_size * 23_040


def test_a_larger_cache_refuses_fewer_tokens():
    widget = show.widget("contiguous_cache", num_seqs=8)
    refused = [widget.set(cache_size=n).real.refused_tokens for n in (256, 1024, 2048, 4096)]
    assert refused == sorted(refused, reverse=True) and refused[0] > refused[-1]


@pytest.mark.parametrize("alignment", [4, 64, 256, 1024])
def test_alignment_costs_the_bytes_that_are_drawn_and_refuses_nothing_more(alignment):
    widget = show.widget("aligned_cache", alignment=alignment, head_dim=100, dtype="float32")
    real, stride = widget.real, row_bytes(100, "float32", alignment)
    drawn = 4 * 1024 * 2 * 30 * 3 * stride
    assert f"{drawn:,} bytes" in widget.svg
    assert drawn <= real.allocated_bytes < drawn + 2**21
    assert real.refused_tokens == sum(row.wanted - row.held for row in admit(1024, 4))


@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("num_blocks", [16, 256, 1024])
def test_the_drawing_of_a_paged_cache_tells_what_the_real_one_did(num_blocks, block_size):
    rows = paged_rows.admit(num_blocks, block_size)
    real = show.widget("paged_cache", num_blocks=num_blocks, block_size=block_size).real
    assert real.admitted == sum(row.admitted for row in rows)
    assert real.held_tokens == sum(row.held for row in rows)
    assert real.refused_tokens == sum(row.wanted - row.held for row in rows)
    assert real.allocated_bytes >= (num_blocks + 1) * block_size * 23_040


@pytest.mark.parametrize("precision", ["float16", "int8", "int2"])
def test_the_drawing_of_a_quantised_cache_tells_what_the_real_one_did(precision):
    rows = quantized_rows.admit(precision, 12)
    real = show.widget("quantized_cache", megabytes=12, precision=precision).real
    assert real.admitted == sum(row.admitted for row in rows)
    assert real.held_tokens == sum(row.held for row in rows)
    assert real.refused_tokens == sum(row.wanted - row.held for row in rows)
    blocks = quantized_rows.blocks_in(precision, 12)
    assert real.allocated_bytes >= quantized_rows.bytes_of(precision, blocks)


def test_blocks_admit_more_than_rows_of_the_same_memory():
    """4,096 slots: four rows of 1,024 admit four requests, 256 blocks of 16 admit five."""
    in_rows = sum(row.held for row in admit(1024, 4))
    in_blocks = sum(row.held for row in paged_rows.admit(256, 16))
    assert in_blocks > in_rows


def test_a_moved_slider_allocates_again_and_says_so():
    widget = show.widget("contiguous_cache")
    box = widget._live()
    before = box.children[-1].value
    widget.set(cache_size=256)
    after = box.children[-1].value
    assert "23,592,960 bytes allocated, 1 of 8 requests admitted" in after
    assert before != after


def test_without_torch_the_picture_stays(monkeypatch):
    def missing(self):
        raise ImportError("kvlib.ContiguousKVCache needs torch")

    monkeypatch.setattr(CacheWidget, "real", property(missing))
    assert (
        "no real cache: kvlib.ContiguousKVCache needs torch"
        in show.widget("contiguous_cache")._sheet()
    )


def test_the_text_of_a_page_names_no_device():
    html = show.widget("contiguous_cache").html
    assert "a real cache" not in html
