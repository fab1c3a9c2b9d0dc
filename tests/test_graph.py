"""Decoding in fixed shapes: the same logits, padded or not, captured on CUDA."""

import pytest
import torch

from conftest import small_config
from exact_caches import poison
from kvlib.tensors.graph import DecodeGraph
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache

TEXTS = {"a": [5, 1, 4, 1, 5, 9, 2, 6, 5], "b": [2, 7, 1, 8, 2, 8, 1, 8, 2]}


@pytest.fixture
def model(device):
    """Sizes that the Triton kernel takes too."""
    return Llama.random(small_config(head_dim=32), seed=1, device=device)


def paged(model, **options):
    place = {"dtype": model.dtype, "device": model.device}
    return poison(PagedKVCache(model.kv_shape, 12, 8, **place, **options))


def prefilled(model, **options):
    cache = paged(model, **options)
    for seq_id, text in TEXTS.items():
        cache.add(seq_id)
        with cache.step({seq_id: text[:3]}) as plan:
            model(torch.tensor(text[:3], device=model.device), cache, plan)
    return cache


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("room", [2, 5])
def test_fixed_shapes_give_the_logits_of_free_ones(model, window, room):
    fixed, free = prefilled(model, window=window), prefilled(model, window=window)
    graph = DecodeGraph(model, fixed, num_seqs=room, max_blocks=3)
    for position in range(3, 9):
        tokens = {seq_id: text[position] for seq_id, text in TEXTS.items()}
        if position == 5:
            tokens.pop("a")  # a batch that shrinks for a step
        before = fixed.counters.snapshot(), free.counters.snapshot()
        got = graph.step(tokens)
        with free.step({s: [t] for s, t in tokens.items()}) as plan:
            expected = model(torch.tensor(list(tokens.values()), device=model.device), free, plan)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert fixed.counters.since(before[0]) == free.counters.since(before[1])
    assert [fixed.length(s) for s in TEXTS] == [free.length(s) for s in TEXTS]
    fixed.check()


def test_buffers_stay_where_they_are(model):
    graph = DecodeGraph(model, prefilled(model), num_seqs=2, max_blocks=3)
    graph.step({"a": 1, "b": 2})
    plan = graph._static
    arrays = (
        plan.positions,
        plan.slot_mapping,
        plan.context.block_table,
        plan.context.rows_of(None),
    )
    where = [each.data_ptr() for each in arrays]
    graph.step({"b": 3})
    plan = graph._static
    arrays = (
        plan.positions,
        plan.slot_mapping,
        plan.context.block_table,
        plan.context.rows_of(None),
    )
    assert [each.data_ptr() for each in arrays] == where


def test_what_does_not_fit_the_shape_is_refused_and_changes_nothing(model):
    cache = prefilled(model)
    graph = DecodeGraph(model, cache, num_seqs=1, max_blocks=1)
    with pytest.raises(ValueError, match="room for 1 sequences, got 2"):
        graph.step({"a": 1, "b": 2})
    for _ in range(5):
        graph.step({"a": 1})
    with pytest.raises(ValueError, match="room for 1 blocks a sequence, got 2"):
        graph.step({"a": 1})
    assert (cache.length("a"), cache.length("b")) == (8, 3)
    cache.check()


def test_a_way_that_waits_cannot_be_captured(model):
    if model.device.type != "cuda":
        pytest.skip("only CUDA captures")
    with pytest.raises(ValueError, match="only the way 'triton'"):
        DecodeGraph(model, paged(model, way="gather"), 1, 1)


@pytest.mark.parametrize("way", ["cpu", "gather", "chunked"])
def test_every_way_that_a_graph_takes_reads_what_this_step_sees(model, way):
    """What the first step found out about its own lengths must not be kept for the next."""
    if model.device.type != "cpu":
        pytest.skip("on a card a graph takes the Triton kernel alone")
    fixed, free = prefilled(model, way=way), prefilled(model, way=way)
    graph = DecodeGraph(model, fixed, num_seqs=2, max_blocks=3)
    for position in range(3, 9):
        tokens = {seq_id: text[position] for seq_id, text in TEXTS.items()}
        got = graph.step(tokens)
        with free.step({s: [t] for s, t in tokens.items()}) as plan:
            expected = model(torch.tensor(list(tokens.values())), free, plan)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
