"""All layers in one call: numbers and counters of the layers that are written to be read."""

import pytest
import torch
from torch import nn

from conftest import small_config
from kvlib.tensors import decode_step
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.kernels import few_rows
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache

STEPS = [[5, 9, 1, 7, 7, 2], [3], [2, 8], [4]]


def served(model, num_seqs, steps=STEPS, **options):
    """Logits of the same steps for each sequence, [steps, num_seqs, vocab], and the cache."""
    cache = PagedKVCache(model.kv_shape, 64, 4, **options)
    found = []
    for i in range(num_seqs):
        cache.add(i)
    for new in steps:
        with cache.step({i: new for i in range(num_seqs)}) as plan:
            found.append(model(torch.tensor(new * num_seqs), cache, plan))
    return torch.stack(found), cache


@pytest.fixture
def calls(monkeypatch):
    """How often the one call was made; `calls.off()` leaves only the layers."""
    made = []
    whole = decode_step.all_layers

    def counted(*arguments):
        made.append(1)
        return whole(*arguments)

    monkeypatch.setattr(decode_step, "all_layers", counted)
    made_off = lambda: monkeypatch.setattr(decode_step, "takes", lambda x, cache: False)  # noqa: E731
    return made, made_off


@pytest.mark.parametrize("num_seqs", [1, 2, 5])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_kv_heads": 6},
        {"num_kv_heads": 1},
        {"head_dim": 64, "hidden_size": 33},
        {"num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64, "hidden_size": 576},
    ],
    ids=str,
)
def test_one_call_is_the_layers(calls, changes, num_seqs):
    model = Llama.random(small_config(**changes), seed=1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # all ones would hide a norm that is left out
                weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    made, off = calls
    one, cache = served(model, num_seqs)
    assert len(made) == len(STEPS)
    off()
    each, other = served(model, num_seqs)
    assert len(made) == len(STEPS)
    assert (one - each).abs().max() < 1e-5 * each.abs().max()
    assert cache.counters == other.counters
    for mine, theirs in (
        (cache.store.keys, other.store.keys),
        (cache.store.values, other.store.values),
    ):
        slots = torch.tensor([slot for i in range(num_seqs) for slot in _slots(cache, i)])
        blocks, offsets = slots // 4, slots % 4
        difference = mine[:, blocks, :, offsets] - theirs[:, blocks, :, offsets]
        assert difference.abs().max() < 1e-4


def _slots(cache, seq_id):
    table = cache.ledger.table(seq_id)
    return [table[p // 4] * 4 + p % 4 for p in range(cache.length(seq_id))]


def test_a_window_is_kept(calls):
    model = Llama.random(small_config(), seed=1)
    made, off = calls
    one, cache = served(model, 2, window=5)
    assert made
    off()
    each, other = served(model, 2, window=5)
    assert (one - each).abs().max() < 1e-5 * each.abs().max()
    assert cache.counters == other.counters
    assert (one - served(model, 2)[0]).abs().max() > 1e-3


def test_a_batch_decodes_the_bits_of_each_alone():
    model = Llama.random(small_config(), seed=1)
    both, alone = served(model, 4)[0], served(model, 1)[0]
    assert all(torch.equal(both[:, i], alone[:, 0]) for i in range(4))


def test_free_slots_hold_anything():
    model = Llama.random(small_config(), seed=1)
    cache = PagedKVCache(model.kv_shape, 8, 4)
    cache.store.keys.fill_(float("nan"))
    cache.store.values.fill_(float("nan"))
    cache.add("a")
    with cache.step({"a": [5, 9, 1]}) as plan:
        assert model(torch.tensor([5, 9, 1]), cache, plan).isfinite().all()


def test_other_caches_and_larger_steps_go_layer_by_layer(calls):
    model = Llama.random(small_config(), seed=1)
    made, _ = calls
    served(model, 1, [[1] * (few_rows.MOST_ROWS + 1)])
    served(model, 1, way="gather")
    for cache in (ContiguousKVCache(model.kv_shape, 1, 8), _Watched(model.kv_shape, 4, 4)):
        cache.add("a")
        with cache.step({"a": [5]}) as plan:
            model(torch.tensor([5]), cache, plan)
    assert not made
    assert cache.written == model.config.num_layers


class _Watched(PagedKVCache):
    written = 0

    def write(self, *arguments):
        self.written += 1
        super().write(*arguments)


def test_a_model_or_cache_that_does_not_fit_is_refused():
    model = Llama.random(small_config(), seed=1)
    wrong = Llama.random(small_config(num_layers=3), seed=1)
    cache = PagedKVCache(wrong.kv_shape, 4, 4)
    cache.add("a")
    with pytest.raises(ValueError, match="the cache is"), cache.step({"a": [5]}) as plan:
        model(torch.tensor([5]), cache, plan)
    assert cache.length("a") == 0
    model.model.layers[1].mlp.up_proj.weight = nn.Parameter(torch.ones(24, 40).T[:, :23])
    cache = PagedKVCache(model.kv_shape, 4, 4)
    cache.add("a")
    with pytest.raises(ValueError, match="one run of float32"), cache.step({"a": [5]}) as plan:
        model(torch.tensor([5]), cache, plan)
    assert cache.length("a") == 0 and cache.ledger.num_free == 4


def test_a_closed_plan_is_refused():
    model = Llama.random(small_config(), seed=1)
    cache = PagedKVCache(model.kv_shape, 4, 4)
    cache.add("a")
    plan = cache.plan({"a": [5]})
    cache.abort(plan)
    with pytest.raises((ValueError, KeyError)):
        model(torch.tensor([5]), cache, plan)


def test_without_a_compiler_the_model_runs_layer_by_layer(monkeypatch, calls):
    model = Llama.random(small_config(), seed=1)
    made, _ = calls
    with_kernel = served(model, 1)[0]
    before = len(made)

    def fail():
        raise few_rows.NoCompiler("none here")

    monkeypatch.setattr(few_rows, "_call", fail)
    few_rows._compiled.cache_clear()
    try:
        without = served(model, 1)[0]
        assert len(made) == before
        assert (without - with_kernel).abs().max() < 1e-5 * with_kernel.abs().max()
    finally:
        few_rows._compiled.cache_clear()


def test_layer_by_layer_is_to_be_had(monkeypatch):
    model = Llama.random(small_config(), seed=1)
    monkeypatch.setattr(decode_step, "all_layers", lambda *args: pytest.fail("one call"))
    model.one_call = False
    cache = PagedKVCache(model.kv_shape, 4, 4)
    cache.add("a")
    with cache.step({"a": [1]}) as plan:
        model(torch.tensor([1]), cache, plan)
    assert cache.length("a") == 1
