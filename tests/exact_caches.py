"""Every cache whose results must be those of no cache: what one of them passes, all must pass."""

import torch

from kvlib.tensors.contiguous import AlignedKVCache, ContiguousKVCache
from kvlib.tensors.paged import PagedKVCache

SIZES = {"num_seqs": 3, "max_seq_len": 16}


def contiguous(shape, device="cpu", **changes):
    return ContiguousKVCache(shape, **{**SIZES, **changes}, device=device)


def growing(shape, device="cpu", **changes):
    """Starts with rows of two slots, so that almost every test makes it grow."""
    return ContiguousKVCache(shape, **{**SIZES, **changes}, initial_seq_len=2, device=device)


def aligned(shape, device="cpu", **changes):
    """Rows of 8 numbers, 64 numbers apart: most of the store is padding."""
    return AlignedKVCache(
        shape, **{**SIZES, **changes}, row_alignment_bytes=256, initial_seq_len=3, device=device
    )


def paged(shape, device="cpu", num_seqs=3, max_seq_len=16, **changes):
    """Blocks of three tokens, as many as all rows of the others would take."""
    num_blocks = num_seqs * -(-max_seq_len // 3)
    return PagedKVCache(shape, num_blocks, 3, device=device, **changes)


ROWS = {made.__name__: made for made in (contiguous, growing, aligned)}
EXACT = {**ROWS, "paged": paged}


def fill(store, value):
    """Fills a whole store, padding included, as an allocator's leftovers might."""
    for side in (store.keys, store.values):
        numbers = side.untyped_storage().nbytes() // side.itemsize
        torch.as_strided(side, (numbers,), (1,), 0).fill_(value)


def poison(cache):
    """Fills every slot with NaN, and those of every longer row that growth will bring."""
    make = cache._new_store

    def poisoned(row_len):
        longer = make(row_len)
        fill(longer, float("nan"))
        return longer

    cache._new_store = poisoned
    fill(cache.store, float("nan"))
    return cache
