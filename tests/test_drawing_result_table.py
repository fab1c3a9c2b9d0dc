"""The table of waste by length agrees with what a growing cache really does."""

import pytest
import torch

from kvlib.show.drawings import find
from kvlib.show.drawings.result_table import LENGTHS, outcome
from kvlib.sizes import KVShape
from kvlib.tensors.contiguous import ContiguousKVCache


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 40])
def test_the_tokens_copied_are_those_a_real_cache_copies(length):
    cache = ContiguousKVCache(KVShape(1, 1, 2), 1, 64, initial_seq_len=8)
    cache.add("a")
    new = torch.zeros(1, 1, 2)
    for _ in range(length):
        with cache.step({"a": [0]}) as plan:
            cache.write(0, new, new, plan)
    told = outcome(length, 8, "grow")
    assert told == (cache.row_len, length, cache.counters.bytes_copied // 16)


def test_a_text_of_128_tokens_in_1024_slots_leaves_87_5_percent_empty():
    svg = find("table_explorer")(reserved=1024, length=128)
    assert svg.count(">87.5 %<") == 1
    assert "896 of 1,024 slots stay empty. Nothing" in svg


def test_past_the_end_tokens_are_refused_copied_or_computed_again():
    for beyond, words in (
        ("refuse", "6,144 tokens are refused"),
        ("grow", "6,144 tokens were copied, 0.81 GB"),
        ("recompute", "6,144 tokens were computed again"),
    ):
        assert words in find("table_explorer")(beyond=beyond, length=8192)
        assert outcome(2048, 2048, beyond) == (2048, 2048, 0)


def test_a_row_is_never_less_than_half_full_once_it_has_grown():
    for length in LENGTHS:
        cell = outcome(length, 256, "grow")
        assert cell.moved == 0 or cell.row_len < 2 * length
