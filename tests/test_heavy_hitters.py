"""H2O: each KV head keeps what its query heads have looked at most so far."""

import pytest
import torch

from kvlib.sizes import KVShape
from kvlib.tensors import heavy_hitters as module
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.token_budget import heavy_hitters, kept
from lossy_cases import GROUP, SHAPE, Text, held


def replayed(text, chunks, budget, recent, sinks):
    """Returns who is held after the text, [layer][head], by a loop over float64 weights."""
    scores = [[{} for _ in range(2)] for _ in range(2)]
    start = 0
    for size in chunks:
        for layer in range(2):
            for head in range(2):
                mine = scores[layer][head]
                before = sorted(mine)
                for query in range(start, start + size):
                    keys = [*before, *range(start, query + 1)]
                    for q_head in range(head * GROUP, (head + 1) * GROUP):
                        weights = text.weights(layer, q_head, query, keys).tolist()
                        for key, weight in zip(keys, weights, strict=True):
                            mine[key] = mine.get(key, 0.0) + weight
                stay = kept(mine, start + size, budget, sinks=sinks, recent=recent)
                scores[layer][head] = {at: mine[at] for at in stay}
        start += size
    return [[sorted(mine) for mine in layer] for layer in scores]


@pytest.mark.parametrize("chunks", [[16], [1] * 16, [5, 4, 7], [9, 1, 1, 5], [3, 1, 1, 1, 10]])
@pytest.mark.parametrize("budget, recent, sinks", [(5, 1, 0), (6, 3, 2), (4, 4, 0), (7, 5, 2)])
def test_the_most_looked_at_stay_in_each_head(chunks, budget, recent, sinks, device):
    text = Text(16, seed=5, device=device)
    cache = HeavyHitterKVCache(SHAPE, 1, budget, recent, sinks=sinks, device=device)
    cache.add("a")
    list(text.steps(cache, chunks))
    assert held(cache) == replayed(text, chunks, budget, recent, sinks)


@pytest.mark.parametrize("at_once", [1, 3, 256])
def test_how_many_queries_weigh_at_once_changes_nothing(at_once, monkeypatch):
    monkeypatch.setattr(module, "QUERIES_AT_ONCE", at_once)
    text, cache = Text(12), HeavyHitterKVCache(SHAPE, 1, 5, 2)
    cache.add("a")
    list(text.steps(cache, [7, 5]))
    assert held(cache) == replayed(text, [7, 5], 5, 2, 0)


@pytest.mark.parametrize("seed", range(5))
def test_one_head_holds_what_the_rule_of_the_memory_half_holds(seed):
    shape = KVShape(1, 1, 8)
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(14, 1, 8, generator=generator) for _ in range(3))
    scores = (q[:, 0].double() @ k[:, 0].double().T) / 8**0.5
    rows = [torch.softmax(scores[i, : i + 1], 0).tolist() for i in range(14)]
    expected = heavy_hitters(rows, budget=5, recent=2)
    cache = HeavyHitterKVCache(shape, 1, 5, recent=2)
    cache.add("a")
    for at in range(14):
        with cache.step({"a": [0]}) as plan:
            cache.write(0, k[at : at + 1], v[at : at + 1], plan)
            cache.attend(0, q[at : at + 1], plan)
        assert cache.positions("a", 0, 0) == expected[at]


def test_a_budget_of_newest_tokens_only_is_a_window():
    cache = HeavyHitterKVCache(SHAPE, 1, 4, recent=4)
    cache.add("a")
    list(Text(10).steps(cache, [1] * 10))
    assert held(cache) == [[[6, 7, 8, 9]] * 2] * 2


def test_a_decoded_token_overwrites_one_slot_and_nothing_moves():
    cache = HeavyHitterKVCache(SHAPE, 1, 5, 2)
    cache.add("a")
    list(Text(12).steps(cache, [8]))
    before, work = cache.store.keys.clone(), cache.counters.snapshot()
    list(Text(12).steps(cache, [1], start=8))
    changed = (before != cache.store.keys).any(dim=-1).sum(dim=-1)
    assert (changed == 1).all()
    spent = cache.counters.snapshot().since(work)
    assert spent.bytes_written == SHAPE.bytes_per_token("float32") and spent.bytes_copied == 0
    assert spent.bytes_read == 6 * SHAPE.bytes_per_token("float32")
    assert spent.attention_pairs == 6


def test_the_weights_it_needs_are_counted():
    """Six query heads, two layers, four bytes: 8 * 8 weights of a prompt, 6 of a token."""
    cache = HeavyHitterKVCache(SHAPE, 1, 5, 2)
    cache.add("a")
    list(Text(12).steps(cache, [8]))
    assert cache.weight_bytes == 2 * 6 * 8 * 8 * 4
    list(Text(12).steps(cache, [1], start=8))
    assert cache.weight_bytes == 2 * 6 * (8 * 8 + 6) * 4
    assert set(cache.counters.kernels) == {"weights_in_the_open"}


def test_scores_and_positions_are_in_the_bytes():
    cache = HeavyHitterKVCache(SHAPE, 3, 5, 2)
    assert cache.nbytes == cache.store.nbytes + 2 * (2 * 3 * 2 * 5 * 4)


@pytest.mark.parametrize(
    "budget, recent, sinks, said",
    [
        (4, 5, 0, r"asked for 0 \+ 5, there are 4"),
        (6, 4, 3, r"asked for 3 \+ 4, there are 6"),
        (4, 0, 0, "recent must be at least 1, got 0"),
        (0, 1, 0, "budget must be at least 1, got 0"),
        (4.0, 1, 0, "budget must be a whole number, got 4.0"),
        (4, 1, -1, "sinks must be at least 0, got -1"),
    ],
)
def test_a_budget_too_small_for_what_must_stay_is_refused(budget, recent, sinks, said):
    with pytest.raises((TypeError, ValueError), match=said):
        HeavyHitterKVCache(SHAPE, 1, budget, recent, sinks=sinks)
