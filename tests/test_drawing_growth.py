"""The growth drawing tells what a real growing cache counts."""

import pytest
import torch

from kvlib import ContiguousKVCache, KVShape
from kvlib.show.drawings.growth import FIRST, growth_factor, life


def grown(growth: float, final: int) -> tuple[int, int, int]:
    """Tokens copied, slots at the peak and slots empty in the end, by a cache that really grew."""
    shape = KVShape(1, 1, 1)
    cache = ContiguousKVCache(shape, 1, 20_000, initial_seq_len=FIRST, growth=growth)
    cache.add("a")
    one = torch.ones(1, 1, 1)
    for _ in range(final):
        with cache.step({"a": [0]}) as plan:
            cache.write(0, one, one, plan)
    per_token = cache.store.bytes_per_token
    counts = (cache.counters.bytes_copied, cache.peak_nbytes)
    return (*(count // per_token for count in counts), cache.row_len - final)


@pytest.mark.parametrize("growth", [1.1, 1.5, 2, 4])
@pytest.mark.parametrize("final", [100, 1024, 1025])
def test_a_real_cache_counts_the_same(growth: float, final: int) -> None:
    found = life(growth, final)
    assert (found.copied, found.peak, found.unused) == grown(growth, final)


def test_one_more_token_doubles_the_row() -> None:
    assert life(2, 1024).unused == 0
    assert life(2, 1025).unused == 1023
    assert "1023" not in growth_factor(2, 1024)
    assert ">1,023<" in growth_factor(2, 1025)


def test_the_sentence_compares_with_concatenation() -> None:
    svg = growth_factor(2, 1000)
    assert "1,008 tokens copied, 1.01 for each one stored." in svg
    assert life(1, 1000).copied == sum(range(FIRST, 1000)) == 499_380
    assert "One slot at a time: 499,380." in svg
