"""The work the bars show is the work the caches count, and the known ratios come out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import small_config
from kvlib.show.drawings import find
from kvlib.show.drawings.work import BYTES_PER_TOKEN, counted
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.generate import generate
from kvlib.tensors.llama import Llama

COUNTS = ("tokens_forwarded", "attention_pairs", "bytes_written", "bytes_read")


@pytest.mark.parametrize("prompt, new", [(1, 1), (1, 6), (5, 1), (4, 7)])
@pytest.mark.parametrize("cached", [True, False])
def test_the_formulas_equal_what_a_run_counts(prompt: int, new: int, cached: bool) -> None:
    model = Llama.random(small_config(), seed=0)
    cache = ContiguousKVCache(model.kv_shape, 1, 16) if cached else None
    work = generate(model, list(range(prompt)), new, cache=cache).work
    expected = counted(prompt, new, cached, model.kv_shape.bytes_per_token("float32"))
    assert [getattr(work, name) for name in COUNTS] == [getattr(expected, name) for name in COUNTS]


@given(st.integers(1, 200), st.integers(1, 50))
def test_the_formulas_are_sums_over_the_steps(prompt: int, new: int) -> None:
    steps = range(prompt, prompt + new)
    has, without = (counted(prompt, new, cached, 1) for cached in (True, False))
    assert without.tokens_forwarded == has.bytes_read == without.bytes_read == sum(steps)
    assert without.attention_pairs == sum(t * (t + 1) // 2 for t in steps)
    assert has.attention_pairs == sum(range(1, prompt + new))
    assert has.tokens_forwarded == has.bytes_written == prompt + new - 1


def test_1024_tokens_from_one_cost_512_times_the_forwards_and_342_times_the_pairs() -> None:
    has, without = (counted(1, 1024, cached) for cached in (True, False))
    assert (has.tokens_forwarded, without.tokens_forwarded) == (1024, 524_800)
    assert without.attention_pairs / has.attention_pairs == 342


def test_one_new_token_is_all_prefill_and_nothing_is_saved() -> None:
    for prompt in (1, 128, 8192):
        svg = find("work_bars")(prompt=prompt, new=1)
        assert svg.count(">1.0 x<") == 3


def test_the_bars_show_the_counts() -> None:
    words = re.findall(r">([^<]+)</text>", find("work_bars")(prompt=1, new=1024))
    assert {"1,024", "524,800", "512.5 x", "179,481,600", "342.0 x", "nothing kept"} <= set(words)
    assert f"{1024 * BYTES_PER_TOKEN / 1e6:.1f} MB" == "47.2 MB"
    assert "47.2 MB" in words
