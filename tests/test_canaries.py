"""Whatever lies in slots that are not a sequence's own, its numbers are the same, bit by bit.

Zeros, NaN, infinity, a large number, and what another tenant has left there.
"""

from functools import cache as once

import pytest
import torch

from conftest import small_config
from exact_caches import fill
from kvlib.sizes import KVShape
from kvlib.tensors.contiguous import AlignedKVCache, ContiguousKVCache
from kvlib.tensors.engine import Engine
from kvlib.tensors.graph import DecodeGraph
from kvlib.tensors.head_sharded import HeadShardedKVCache
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.kernel_variants import block_major, compiled, split_kv
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.paged_attention import WAYS
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.sequence_sharded import SequenceShardedKVCache
from kvlib.tensors.sink_window import RollingKVCache, SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tensors.top_blocks import TopBlocksKVCache
from kvlib.tier import Tier

CANARIES = [float("nan"), float("inf"), -1e30, 7.0]
TEXTS = {"a": [5, 1, 4, 1, 5, 9, 2], "b": [2, 7, 1, 8], "c": [3, 3, 3, 3, 3]}


class Alone:
    """The only rank of a group."""

    rank, size, salt = 0, 1, b""

    def agree(self, what, mine):
        pass

    def gather(self, part):
        return [part]


def blocks(kind, **options):
    return lambda shape: kind(shape, 12, 3, **options)


def in_tiers(shape):
    return TieredKVCache(shape, 12, 3, tiers=[(Tier("host", 10**6, 10), HostBlocks())])


CACHES = {
    "contiguous": lambda shape: ContiguousKVCache(shape, 3, 12),
    "growing": lambda shape: ContiguousKVCache(shape, 3, 12, initial_seq_len=2),
    "aligned": lambda shape: AlignedKVCache(shape, 3, 12, row_alignment_bytes=128),
    **{way: blocks(PagedKVCache, way=way) for way in WAYS if way != "triton"},
    **{f"{way}, a window": blocks(PagedKVCache, way=way, window=3) for way in ("chunked", "cpu")},
    "top blocks": blocks(TopBlocksKVCache, top_k=2),
    "top blocks, gathered": blocks(TopBlocksKVCache, top_k=2, way="gather"),
    "codes": lambda shape: QuantizedKVCache(shape, 12, 2, num_seqs=3),
    "codes, written down": lambda shape: QuantizedKVCache(
        shape, 12, 2, num_seqs=3, way="dequantize"
    ),
    "a ring": lambda shape: RollingKVCache(shape, 3, window=4),
    "sinks": lambda shape: SinkWindowKVCache(shape, 3, sinks=1, window=3),
    "heavy hitters": lambda shape: HeavyHitterKVCache(shape, 3, budget=5, recent=2),
    "snap": lambda shape: SnapKVCache(shape, 3, budget=5, observe=2, kernel=3),
    "tiers": in_tiers,
    "cut by heads": blocks(HeadShardedKVCache, ranks=Alone()),
    "cut by tokens": blocks(SequenceShardedKVCache, ranks=Alone()),
    "cut by tokens, gathered": blocks(SequenceShardedKVCache, ranks=Alone(), way="gather"),
}


@once
def model():
    return Llama.random(small_config(num_q_heads=4, head_dim=8), seed=1)


def strew(cache, value):
    """Fills all that a cache has allocated, as an earlier tenant would have left it."""
    fill(cache.store, value)
    for name in ("_scores", "extremes"):
        if hasattr(cache, name):
            getattr(cache, name).fill_(value)
    if hasattr(cache, "_held_positions"):
        cache._held_positions.fill_(2**31 - 1 if value != 7.0 else 0)
    if isinstance(cache, QuantizedKVCache):
        for side in cache.codes.sides:
            side.fill_(0 if value == 7.0 else 255)
    make = cache._new_store

    def strewn(row_len):
        longer = make(row_len)
        fill(longer, value)
        return longer

    cache._new_store = strewn
    return cache


def forward(cache, new):
    tokens = torch.tensor([token for text in new.values() for token in text])
    with cache.step(new) as plan:
        return model()(tokens, cache, plan)


def served(cache):
    """Three tenants, two at a time; the third gets what the first has left."""
    for seq_id in "ab":
        cache.add(seq_id)
    outs = [forward(cache, {"a": TEXTS["a"][:4], "b": TEXTS["b"][:1]})]
    outs += [forward(cache, {"a": [TEXTS["a"][i]], "b": [TEXTS["b"][i - 3]]}) for i in (4, 5)]
    cache.free("a")
    cache.add("c")
    outs.append(forward(cache, {"c": TEXTS["c"][:3], "b": TEXTS["b"][3:]}))
    outs += [forward(cache, {"c": [token]}) for token in TEXTS["c"][3:]]
    cache.check()
    if hasattr(cache, "close"):
        cache.close()
    return torch.cat(outs)


@pytest.mark.parametrize("name", CACHES)
def test_no_output_depends_on_what_lies_in_free_slots(name):
    clean = served(strew(CACHES[name](model().kv_shape), 0.0))
    assert torch.isfinite(clean).all()
    for value in CANARIES:
        assert torch.equal(served(strew(CACHES[name](model().kv_shape), value)), clean), value


@pytest.mark.parametrize("name", CACHES)
def test_a_new_tenant_gets_the_same_after_any_other(name):
    """Alone in a new cache, and in one that others have filled and left."""
    alone, used = (CACHES[name](model().kv_shape) for _ in range(2))
    if not hasattr(used.ledger, "window") or used.ledger.window is None:
        others = [[i + 10 * j for i in range(6)] for j in range(3)]
    else:
        others = [[1] * 3] * 3
    for seq_id, text in enumerate(others):
        used.add(seq_id)
        forward(used, {seq_id: text})
    for seq_id in range(3):
        used.free(seq_id)
    texts = []
    for cache in (alone, used):
        cache.add("c")
        outs = [forward(cache, {"c": TEXTS["c"][:2]})]
        texts.append(torch.cat(outs + [forward(cache, {"c": [t]}) for t in TEXTS["c"][2:]]))
        getattr(cache, "close", lambda: None)()
    torch.testing.assert_close(texts[0], texts[1], rtol=0, atol=0)


CHOOSING = ("heavy hitters", "snap")  # a layer that did not attend has not chosen: refused


def rows(num_tokens, heads=2, seed=3):
    """One layer's keys and values of so many tokens."""
    made = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(num_tokens, heads, 8, generator=made) for _ in range(2))


@pytest.mark.parametrize("name", sorted(CACHES.keys() - set(CHOOSING)))
def test_a_layer_that_was_not_written_holds_nothing_of_another_tenant(name):
    """A model that leaves a layer out finds zeros there, never what somebody left."""
    outs = []
    for value in (0.0, *CANARIES):
        cache = strew(CACHES[name](model().kv_shape), value)
        cache.add("a")
        for tokens in ([1, 2, 3], [4], [5]):
            with cache.step({"a": tokens}) as plan:
                cache.write(1, *rows(len(tokens)), plan)
        with cache.step({"a": [6]}) as plan:
            for layer in range(2):
                cache.write(layer, *rows(1, seed=4), plan)
                outs.append(cache.attend(layer, rows(1, heads=4)[0], plan))
        cache.check()
        getattr(cache, "close", lambda: None)()
    assert torch.isfinite(outs[0]).all() and outs[0].any()
    for layer in range(2):
        assert all(torch.equal(out, outs[layer]) for out in outs[layer::2])


@pytest.mark.parametrize("name", CACHES)
def test_a_layer_is_written_before_it_is_attended_to(name):
    cache = CACHES[name](model().kv_shape)
    cache.add("a")
    plan = cache.plan({"a": [1, 2]})
    cache.write(0, *rows(2), plan)
    with pytest.raises(ValueError, match="1 was not written"):
        cache.attend(1, rows(2, heads=4)[0], plan)
    if name in CHOOSING:
        with pytest.raises(ValueError, match="0 have attended"):
            cache.commit(plan)
    cache.abort(plan)
    cache.check()
    again = cache.plan({"a": [1, 2]})
    with pytest.raises(ValueError, match="0 was not written"):
        cache.attend(0, rows(2, heads=4)[0], again)
    cache.abort(again)
    getattr(cache, "close", lambda: None)()


LAB = {
    "block_major": lambda: block_major,
    "split_kv": lambda: split_kv,
    "compiled": compiled,
    "without prefetching": lambda: compiled(prefetch=False),
    "without known sizes": lambda: compiled(known_sizes=False),
}


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("way", [*(way for way in WAYS if way != "triton"), *LAB])
def test_no_kernel_looks_at_a_free_slot_or_a_free_block(way, window):
    """The null block, blocks of nobody, and the slots behind the last token of each sequence."""
    generator = torch.Generator().manual_seed(2)
    shape, outs = KVShape(1, 2, 8), []
    k, v = torch.randn(2, 12, 2, 8, generator=generator)
    q = torch.randn(3, 4, 8, generator=generator)
    for value in (0.0, *CANARIES):
        cache = strew(PagedKVCache(shape, 9, 4, way="gather"), value)
        for seq_id, text in (("a", range(4)), ("b", range(7)), ("c", range(1))):
            cache.add(seq_id)
            with cache.step({seq_id: text[:-1]}) as plan:
                cache.write(0, k[text.start : text.stop - 1], v[text.start : text.stop - 1], plan)
        plan = cache.plan({seq_id: [0] for seq_id in "abc"})
        last = torch.tensor([3, 6, 0])
        cache.write(0, k[last], v[last], plan)
        attend = LAB[way]() if way in LAB else WAYS[way]
        outs.append(attend(q, cache.store.keys[0], cache.store.values[0], plan.context, window)[0])
    assert torch.isfinite(outs[0]).all()
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_a_padded_step_of_fixed_shape_looks_at_nothing_else():
    outs = []
    for value in (0.0, *CANARIES):
        cache = strew(PagedKVCache(model().kv_shape, 12, 3), value)
        for seq_id in "ab":
            cache.add(seq_id)
            forward(cache, {seq_id: TEXTS[seq_id][:3]})
        graph = DecodeGraph(model(), cache, num_seqs=4, max_blocks=4)
        steps = [graph.step({"a": 1, "b": 2}).clone(), graph.step({"b": 3}).clone()]
        outs.append(torch.cat(steps))
    assert torch.isfinite(outs[0]).all() and all(torch.equal(out, outs[0]) for out in outs)


def test_an_engine_gives_everybody_the_same_tokens():
    got = []
    for value in (0.0, *CANARIES):
        engine = Engine(model(), num_blocks=6, block_size=3, swap_tokens=9)
        strew(engine.cache, value)
        requests = [engine.submit(text, 5, tenant=name) for name, text in TEXTS.items()]
        engine.run()
        engine.check()
        got.append([request.tokens for request in requests])
    assert all(each == got[0] for each in got)


@pytest.mark.parametrize("kind", ["contiguous", "paged", "quantized", "tiered"])
@pytest.mark.parametrize("way", ["kvlib", "sdpa"])
def test_a_model_of_transformers_sees_nothing_of_a_free_slot(kind, way):
    hf = pytest.importorskip("hf_models")
    made = hf.tiny("llama")
    made.set_attn_implementation(way)
    sizes = {"contiguous": (3, 16), "quantized": (12, 4)}.get(kind, (12, 4))
    ids, outs = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 8]]), []
    mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    if kind == "tiered" and way == "sdpa":
        ids, mask = ids.clamp(min=1), torch.ones_like(mask)
    for value in (0.0, *CANARIES):
        cache = getattr(hf.HFCache, kind)(made, *sizes)
        for group in cache.groups:
            strew(group.cache, value)
        with torch.no_grad():
            first = made(ids, attention_mask=mask, cache=cache).logits
            more = torch.cat((mask, torch.ones(2, 1, dtype=torch.int64)), 1)
            second = made(ids[:, -1:], attention_mask=more, cache=cache).logits
        outs.append(torch.cat((first[mask.bool()], second[:, 0])))
        cache.check()
        if kind == "tiered":
            cache.close()
    assert torch.isfinite(outs[0]).all() and all(torch.equal(out, outs[0]) for out in outs)


def test_the_canary_would_be_seen():
    """A reader of one slot too many does not get through here."""

    def longer(cache):
        view = cache.store.view
        cache.store.view = lambda layer, row, n: view(layer, row, min(n + 1, 12))
        return cache

    clean = served(strew(CACHES["contiguous"](model().kv_shape), 0.0))
    for value in CANARIES:
        cache = longer(strew(CACHES["contiguous"](model().kv_shape), value))
        assert not torch.equal(served(cache), clean)
