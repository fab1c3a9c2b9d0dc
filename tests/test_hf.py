"""kvlib's caches under transformers: the same texts, and proof that the caches made them."""

import subprocess
import sys
from importlib import import_module

import pytest
import torch

from hf_models import (
    CACHES,
    EXACT,
    IDS,
    KINDS,
    MASK,
    PADDED,
    PADS,
    STRATEGIES,
    assert_all_free,
    expected,
    plain,
    text,
    tiny,
    transformers,
)
from kvlib.plan import OutOfBlocks
from kvlib.precision import Precision
from kvlib.tensors.hf import HFCache
from kvlib.tensors.hf_cache import SteppedCache
from kvlib.tensors.hf_support import RANGE, UnsupportedTransformers, require_transformers
from kvlib.tensors.paged import PagedKVCache

REAL = int(MASK.sum())
ways = pytest.mark.parametrize("way", ["plain", "kvlib"])
kinds = pytest.mark.parametrize("kind", KINDS)


def under(kind, way, device="cpu", **changes):
    model = tiny(kind, device, **changes)
    model.set_attn_implementation(plain(kind) if way == "plain" else way)
    return model


# The same texts


@ways
@pytest.mark.parametrize("name", EXACT)
@kinds
def test_every_exact_cache_gives_the_texts_of_transformers_own(kind, name, way, device):
    model = under(kind, way, device)
    for strategy in STRATEGIES:
        padded = way == "kvlib" or name != "tiered"
        cache = EXACT[name](model)
        got = text(model, cache, strategy, padded)
        assert torch.equal(got, expected(kind, strategy, padded, device)), strategy
        assert cache.counters.bytes_written > 0
        cache.reset()
        assert_all_free(cache)
        cache.close()


COARSE = {"keys": Precision(4, along="channel"), "values": Precision(4)}
PARTS = (8, 1, 1, 1, 2)


def at_first_layer(monkeypatch, name, model, cache):
    """What goes in and comes out of one method at layer 0, where inputs do not depend on caches."""
    seen, made = [], getattr(SteppedCache, name)

    def spy(self, *args, **options):
        out = made(self, *args, **options)
        if args[2 if name == "update" else 0] == 0:
            seen.append((args, out))
        return out

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(SteppedCache, name, spy)
        for part in IDS[:1].split(PARTS, dim=1):
            model(part, cache=cache)
    return seen


def half_steps(x, precision):
    """The largest of any group: of a channel [Hkv, D], or of any row."""
    if precision.along == "channel":
        ends = zip(x.amin(1).flatten(), x.amax(1).flatten(), strict=True)
        half = [precision.half_step(float(low), float(high)) for low, high in ends]
        return torch.tensor(half).reshape(x.shape[0], x.shape[2])
    return precision.half_step(float(x.min()), float(x.max()))


@kinds
def test_codes_are_read_back_within_half_a_step(kind, monkeypatch):
    model = under(kind, "plain")
    cache = HFCache.quantized(model, 60, 4, **COARSE)
    seen = at_first_layer(monkeypatch, "update", model, cache)
    k = torch.cat([args[0] for args, _ in seen], 2)[0]
    read = seen[-1][1][0][0]
    off = (read - k[:, -read.shape[1] :]).abs()
    assert off.max() > 1e-4 and bool((off <= half_steps(k, COARSE["keys"])[:, None] + 1e-6).all())


@kinds
def test_outputs_over_codes_keep_the_bound_that_their_cache_states(kind, monkeypatch):
    """|output error| <= 2 tanh(e / 2) max|v| + h, with e = scale * sum |q_d| h_d."""
    model = under(kind, "kvlib")
    runs = [
        at_first_layer(monkeypatch, "attend", model, cache)
        for cache in (HFCache.paged(model, 60, 4), HFCache.quantized(model, 60, 4, **COARSE))
    ]
    k, v = (torch.cat([args[at] for args, _ in runs[0]], 2)[0] for at in (2, 3))
    h_k, h_v = (half_steps(x, COARSE[name]) for x, name in ((k, "keys"), (v, "values")))
    scale, largest = model.model.layers[0].self_attn.scaling, 0.0
    for (args, exact), (_, lossy) in zip(*runs, strict=True):
        q = args[1][0].transpose(0, 1)  # [T, Hq, D]
        e = scale * (q.abs() * h_k.repeat_interleave(3, 0)).sum(-1)
        allowed = 2 * torch.tanh(e / 2) * v.abs().max() + h_v
        off = (exact - lossy)[0].abs().amax(-1)
        assert bool((off <= allowed + 1e-5).all())
        largest = max(largest, float(off.max()))
    assert largest > 1e-4


# Proof that the cache was used


@ways
@pytest.mark.parametrize("name", CACHES)
def test_the_counters_say_what_was_forwarded_and_stored(name, way):
    model = under("llama", way)
    cache = CACHES[name](model)
    text(model, cache, padded=False, max_new_tokens=6)
    work = cache.counters
    assert work.tokens_forwarded == 3 * (13 + 5)  # the last new token is never forwarded
    if name != "quantized":
        assert (
            work.bytes_written
            == work.tokens_forwarded * cache.groups[0].cache.store.bytes_per_token
        )
    calls = 2 * 6 if way == "plain" or name != "contiguous" else 2 * 6 * 3
    used = {"plain": {"hf_gather"}}.get(way) or {
        "contiguous": {"sdpa_contiguous"},
        "quantized": {"quantized_cpu", "dequantize"},
    }.get(name, {"cpu"})
    assert set(work.kernels) == used
    assert name == "quantized" or sum(work.kernels.values()) == calls
    cache.close()


def test_work_of_several_groups_is_added_and_tokens_are_counted_once():
    model = under("gemma3", "kvlib")
    cache = EXACT["paged"](model)
    text(model, cache, padded=False, max_new_tokens=6)
    each = [group.cache for group in cache.groups]
    assert [g.layers for g in cache.groups] == [(0, 2), (1,)]
    assert cache.counters.tokens_forwarded == 54
    assert cache.counters.bytes_written == 54 * sum(c.store.bytes_per_token for c in each)
    assert cache.counters.kernels == {each[0].way: 3 * 6} and cache.nbytes == sum(
        c.nbytes for c in each
    )


@pytest.mark.parametrize("name", CACHES)
def test_pads_are_not_stored_where_the_attention_is_kvlibs(name):
    model = under("llama", "kvlib")
    cache = CACHES[name](model)
    text(model, cache, max_new_tokens=3)
    assert cache.counters.tokens_forwarded == REAL + 2 * 3
    assert cache._rows.lengths == [13 - pads + 2 for pads in PADS]
    if name == "contiguous":
        model.set_attn_implementation("sdpa")
        gathers = CACHES[name](model)
        text(model, gathers, max_new_tokens=3)
        assert gathers._rows.lengths == [15] * 3  # update() is not told which are pads
    cache.close()


def test_a_window_gives_blocks_back_while_the_text_grows():
    model = under("mistral", "kvlib")
    cache = EXACT["paged"](model)
    text(model, cache, padded=False, max_new_tokens=40)
    held = len(cache.rows) * 3  # a window of 7 in blocks of 4
    assert cache.groups[0].cache.ledger.pool.num_held <= held
    assert cache.get_seq_length() == 13 + 39


@pytest.mark.parametrize("new, first", [(1, 13 + 1 - 7), (4, 13 + 1 - 7)])
def test_a_window_gathers_what_its_queries_see_and_no_more(new, first):
    model = under("mistral", "plain")
    cache = EXACT["paged"](model)
    logits(model, IDS, cache)
    assert cache.get_mask_sizes(new, 0) == (13 + new - first, first)
    read = cache.counters.bytes_read
    logits(model, IDS[:, :new], cache)
    per_token = cache.groups[0].cache.store.bytes_per_token
    assert cache.counters.bytes_read - read == 3 * (13 + new - first) * per_token


def test_beams_share_blocks_and_copy_the_last_one_only():
    model = under("llama", "kvlib")
    cache = EXACT["paged"](model)
    text(model, cache, "beams", padded=False, max_new_tokens=8)
    ledger = cache.groups[0].cache.ledger
    tables = [ledger.table(row) for row in cache.rows]
    distinct = {block for table in tables for block in table}
    assert len(cache.rows) == 9 and ledger.pool.num_held == len(distinct)
    assert len(distinct) <= sum(map(len, tables)) - 2 * 3 * 3  # three whole blocks of each prompt
    per_token = cache.groups[0].cache.store.bytes_per_token
    assert 0 < cache.counters.bytes_copied <= 9 * 3 * per_token * 7
    cache.reset()
    assert_all_free(cache)


# What else transformers does to a cache


@torch.no_grad()
def logits(model, ids, cache, mask=None, **options):
    return model(ids, attention_mask=mask, cache=cache, **options).logits


@ways
@pytest.mark.parametrize("name", EXACT)
@kinds
def test_what_is_cropped_was_never_there(kind, name, way):
    model = under(kind, way)
    cache = EXACT[name](model)
    cache.activate_past_recording()
    logits(model, IDS[:, :9], cache)
    for wrong in (4, 2, 0, 1):  # drafts that are partly refused
        at = cache.get_seq_length()
        logits(model, torch.cat([IDS[:, at : at + 1], IDS[:, :wrong]], 1), cache)
        cache.crop(-wrong)
        cache.check()
        for group in cache.groups:
            if group.drops:  # three rows, a window of 7 in blocks of 4
                assert group.cache.ledger.pool.num_held <= 3 * 3
    got = logits(model, IDS[:, 13:], cache) if cache.get_seq_length() < 13 else None
    assert got is None and cache.get_seq_length() == 13
    want = logits(tiny(kind), torch.cat([IDS, IDS[:, :1]], 1), None)[:, -1]
    torch.testing.assert_close(logits(model, IDS[:, :1], cache)[:, -1], want, atol=1e-4, rtol=1e-4)
    cache.close()


@ways
@kinds
def test_assisted_decoding_takes_drafts_back(kind, way, monkeypatch):
    model, cropped = under(kind, way), []
    made = SteppedCache.crop
    monkeypatch.setattr(SteppedCache, "crop", lambda self, n: (cropped.append(n), made(self, n))[1])
    ids = IDS[:1, :5].repeat(1, 3)
    options = {"do_sample": False, "max_new_tokens": 12, "prompt_lookup_num_tokens": 3}
    options["attention_mask"] = torch.ones_like(ids)
    want = tiny(kind).generate(ids, **options)
    cropped.clear()
    cache = EXACT["paged"](model)
    assert torch.equal(model.generate(ids, cache=cache, **options), want)
    assert min(cropped) < 0
    cache.reset()
    assert_all_free(cache)


def test_a_window_that_was_not_told_to_wait_refuses_to_go_back():
    model = under("mistral", "kvlib")
    cache = EXACT["paged"](model)
    logits(model, IDS, cache)
    with pytest.raises(RuntimeError, match=r"window of 7 .* activate_past_recording"):
        cache.crop(-1)
    assert cache.get_seq_length() == 13
    for wrong in (1, -14):
        with pytest.raises(ValueError, match="0 to 13 columns"):
            cache.crop(wrong)


@pytest.mark.parametrize("name", CACHES)
def test_LN_1_what_is_dropped_from_three_tokens(name):
    model = under("llama", "kvlib")
    cache = CACHES[name](model)
    for dropped, left in ((0, 3), (-3, 0), (-1, 2)):
        logits(model, IDS[:1, :3], cache)
        cache.crop(dropped)
        assert cache.get_seq_length() == left == sum(cache._rows.lengths)
        cache.reset()
    logits(model, IDS[:1, :3], cache)
    with pytest.raises(ValueError, match="0 to 3 columns"):
        cache.crop(-5)
    assert cache.get_seq_length() == 3
    cache.close()


def test_LN_2_offsets_before_each_call():
    model, offsets = under("llama", "kvlib"), []
    cache = EXACT["paged"](model)
    for new in (6, 1, 1, 1, 1):
        offsets.append(cache.get_query_offset())
        logits(model, IDS[:1, :new], cache)
    assert offsets == [0, 6, 7, 8, 9]


@ways
@pytest.mark.parametrize("name", EXACT)
def test_a_batch_can_be_repeated_and_thinned_out(name, way):
    model = under("qwen3", way)
    cache, theirs = EXACT[name](model), transformers.DynamicCache(config=model.config)
    for each in (cache, theirs):
        logits(model, IDS, each)
        each.batch_repeat_interleave(2)
        each.batch_select_indices(torch.tensor([0, 3, 3, 4]))
        each.reorder_cache(torch.tensor([2, 1, 0, 3]))
    assert cache.batch_size == 4
    model.set_attn_implementation(way if way == "kvlib" else "sdpa")
    got = logits(model, IDS[:1, :4].repeat(4, 1), cache)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(got, logits(model, IDS[:1, :4].repeat(4, 1), theirs))
    cache.reset()
    assert_all_free(cache)
    cache.close()


@ways
@pytest.mark.parametrize("name", EXACT)
def test_a_text_can_be_continued(name, way):
    """As a chat is: the cache holds the first answer, the second prompt contains it."""
    model = under("mistral", way)
    cache = EXACT[name](model)
    one = text(model, cache, padded=False)
    before = cache.counters.tokens_forwarded
    more = torch.cat([one, IDS[:, :4]], 1)
    options = {"attention_mask": torch.ones_like(more), "max_new_tokens": 5, "do_sample": False}
    got = model.generate(more, cache=cache, **options)
    model.set_attn_implementation("sdpa")
    assert torch.equal(got, model.generate(more, **options))
    assert cache.counters.tokens_forwarded - before == 3 * (1 + 4 + 4)
    cache.close()


@pytest.mark.filterwarnings("ignore:.*past_key_values")
def test_the_older_name_of_the_argument_is_taken():
    model = under("llama", "kvlib")
    cache = EXACT["paged"](model)
    torch.manual_seed(5)
    got = model.generate(
        PADDED, attention_mask=MASK, past_key_values=cache, do_sample=False, max_new_tokens=12
    )
    assert torch.equal(got, expected("llama")) and cache.get_seq_length() == 24
    cache.reset()
    with torch.no_grad():
        model(IDS, past_key_values=cache)
    assert cache.get_seq_length() == 13


@pytest.mark.parametrize("padded", [True, False])
def test_what_was_reset_comes_back_from_the_tier_below(padded):
    model = under("llama", "kvlib")
    cache = EXACT["tiered"](model)
    one = text(model, cache, padded=padded)
    cache.reset()
    before = cache.counters.tokens_forwarded
    ids, mask = (PADDED, MASK) if padded else (IDS, torch.ones_like(IDS))
    restored = cache.restore(ids, mask)
    # Whole blocks of four, never the whole prompt; of the shortest row, 4 tokens, none.
    assert restored == (9 if padded else 12)
    assert torch.equal(text(model, cache, padded=padded), one)
    again = cache.counters.tokens_forwarded - before
    assert again == sum(13 - max(p, restored) for p in (PADS if padded else (0,) * 3)) + 3 * 11
    with pytest.raises(ValueError, match="3 rows are held: reset"):
        cache.restore(ids)
    cache.reset()
    text_ids = torch.cat([one, IDS[:, :1]], 1)
    if not padded:  # blocks of generated tokens have names, too
        assert cache.restore(text_ids) == 24
    cache.close()


# Nothing is left behind


def fail_at(model, layer, error=None):
    def hook(*_):
        raise error or RuntimeError("in the middle")

    return model.model.layers[layer].mlp.register_forward_pre_hook(hook)


@ways
@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_forward_that_raises_leaves_no_trace(kind, name, way):
    model = under(kind, way)
    cache = CACHES[name](model)
    logits(model, IDS[:, :6], cache)
    free = free_now(cache)
    broken = fail_at(model, 0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="in the middle"):
            logits(model, IDS[:, 6:], cache)
        assert cache.get_seq_length() == 6
    broken.remove()
    got = logits(model, IDS[:, 6:], cache)
    other = CACHES[name](model)
    logits(model, IDS[:, :6], other)
    torch.testing.assert_close(got, logits(model, IDS[:, 6:], other), atol=0, rtol=0)
    broken = fail_at(model, 0)
    with pytest.raises(RuntimeError, match="in the middle"):
        logits(model, IDS[:, 6:], cache)
    broken.remove()
    cache.reset()
    assert free_now(cache) != free
    if name != "quantized":
        assert_all_free(cache)
    cache.check()
    cache.close()
    other.close()


@ways
def test_rows_of_a_first_forward_that_raised_do_not_stay(way):
    model = under("llama", way)
    cache = EXACT["paged"](model)
    broken = fail_at(model, 0)
    with pytest.raises(RuntimeError, match="in the middle"):
        logits(model, IDS, cache)
    broken.remove()
    logits(model, IDS[:2], cache)  # another number of rows
    assert cache.batch_size == 2


def free_now(cache):
    return [group.cache.ledger.num_free for group in cache.groups]


@ways
def test_without_room_nothing_changes_in_any_group(way):
    model = under("gemma3", way)
    caches = []

    def make(shape, window, layers):
        caches.append(PagedKVCache(shape, 60 if window else 6, 4, window=window))
        return caches[-1]

    cache = HFCache(model, make)
    with pytest.raises(OutOfBlocks, match="asked for 12 blocks of 4, 6 free of 6"):
        logits(model, IDS, cache)
    cache.check()
    assert free_now(cache) == [60, 6] and not cache.rows and cache.get_seq_length() == 0
    logits(model, IDS[:2, :9], cache)
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks of 4, 0 free of 6"):
        logits(model, IDS[:2, 9:], cache)
    assert cache.get_seq_length() == 9
    logits(model, IDS[:2, 9:12], cache)
    cache.check()


def test_several_batches_can_live_in_one_pool():
    model, made = under("qwen3", "kvlib"), []

    def shared(shape, window, layers):
        made.append(made[0] if made else PagedKVCache(shape, 60, 4))
        return made[-1]

    one, two = HFCache(model, shared), HFCache(model, shared)
    assert made[0] is made[1]
    for begin, end in ((0, 7), (7, 13)):
        mine = logits(model, IDS[:1, begin:end], one)
        theirs = logits(model, IDS[1:, begin:end], two)
    want = logits(model, IDS, None)[:, 7:]
    torch.testing.assert_close(torch.cat([mine, theirs]), want)
    one.reset()
    assert free_now(two) == [60 - 2 * 4]
    two.reset()
    assert_rows(two, 60)


def test_rows_that_do_not_fit_are_not_taken():
    model = under("llama", "kvlib")
    cache = HFCache.contiguous(model, 2, 16)
    with pytest.raises(OutOfBlocks):
        logits(model, IDS, cache)
    assert_rows(cache, 2)
    logits(model, IDS[:2], cache)
    with pytest.raises(OutOfBlocks):
        cache.batch_repeat_interleave(2)
    assert cache.batch_size == 2
    cache.reset()
    assert_rows(cache, 2)


def assert_rows(cache, free):
    cache.check()
    assert free_now(cache) == [free] and not cache.rows


# What is refused, and why


def test_another_batch_is_refused_until_the_first_is_reset():
    model = under("llama", "kvlib")
    cache = EXACT["paged"](model)
    logits(model, IDS, cache)
    with pytest.raises(ValueError, match="a batch of 2 rows came, 3 are held"):
        logits(model, IDS[:2], cache)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="13 columns were stored under 'kvlib'"):
        logits(model, IDS, cache)
    cache.reset()
    logits(model, IDS[:2], cache)


def test_a_mask_must_say_of_earlier_columns_what_it_said():
    model = under("llama", "kvlib")
    cache = EXACT["paged"](model)
    logits(model, PADDED, cache, MASK)
    for wrong in (None, torch.ones(3, 14, dtype=torch.long), MASK):
        with pytest.raises(ValueError, match="in the 13 columns before"):
            logits(model, IDS[:, :1], cache, wrong)
    logits(model, IDS[:, :1], cache, torch.cat([MASK, torch.ones(3, 1, dtype=torch.long)], 1))


def test_pads_in_the_middle_are_left_out_but_not_under_a_window():
    mask = torch.ones_like(IDS)
    mask[1, 4:8] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    model = under("llama", "kvlib")
    got = logits(model, IDS, EXACT["paged"](model), mask, position_ids=positions)
    model.set_attn_implementation("sdpa")
    want = logits(model, IDS, None, mask, position_ids=positions)
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()])
    model = under("mistral", "kvlib")
    cache = EXACT["paged"](model)
    with pytest.raises(ValueError, match="under a window pads belong on the left"):
        logits(model, IDS, cache, mask)
    assert_rows(cache, 60)


def test_what_the_attention_does_not_know_is_refused_with_the_way_out():
    model = under("llama", "kvlib")
    cache = EXACT["paged"](model)
    own = torch.ones(3, 1, 13, 13, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match=r"a mask of its own.*'sdpa' or 'eager'"):
        logits(model, IDS, cache, own)
    assert_rows(cache, 60)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(logits(model, IDS, cache, own), logits(model, IDS, None))


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_model_that_does_not_hand_on_what_update_gives_it_is_found_out(num_layers, monkeypatch):
    made = SteppedCache.update

    def drop(self, k, v, layer, *args, **kwargs):
        out = made(self, k, v, layer, *args, **kwargs)
        kwargs["kwargs"].clear()
        return out

    monkeypatch.setattr(SteppedCache, "update", drop)
    model = under("llama", "kvlib", num_hidden_layers=num_layers)
    cache = EXACT["paged"](model)
    with pytest.raises(RuntimeError, match="layer 0 does not hand on"):
        logits(model, IDS, cache)
    assert_rows(cache, 60)


def test_layers_that_never_come_to_the_attention_function_are_found_out():
    model = under("llama", "kvlib")
    cache = EXACT["paged"](model)
    k = torch.zeros(1, 2, 1, 4)
    with pytest.raises(RuntimeError, match="layer 0 does not hand on"):
        cache.update(k, k, 0)  # no dictionary travels with it
    cache.update(k, k, 0, kwargs={})
    with pytest.raises(RuntimeError, match="layer 0 does not hand on"):
        cache.update(k, k, 1, kwargs={})
    assert_rows(cache, 60)


@ways
def test_gradients_are_refused_and_nothing_is_kept_of_them(way):
    model = under("llama", way)
    cache = EXACT["paged"](model)
    with pytest.raises(ValueError, match=r"keeps no gradients.*torch\.no_grad"):
        model(IDS, cache=cache)
    assert_rows(cache, 60)
    logits(model, IDS, cache)
    assert not cache.groups[0].cache.store.keys.requires_grad


@kinds
def test_a_single_text_goes_where_many_do(kind):
    """One token a step has a way of its own to its place, in all layers at once."""
    model = under(kind, "kvlib")
    ids = IDS[:1, :6]
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 12}
    cache = EXACT["paged"](model)
    got = model.generate(ids, cache=cache, **options)
    assert torch.equal(got, tiny(kind).generate(ids, **options))
    assert cache.counters.bytes_written == 17 * sum(
        g.cache.store.bytes_per_token for g in cache.groups
    )


@pytest.mark.parametrize(
    "config, kinds",
    [
        ("Qwen3NextConfig", ["linear_attention", "full_attention"]),
        ("Llama4TextConfig", ["chunked_attention", "full_attention"]),
    ],
)
def test_layers_that_keep_something_else_are_named(config, kinds):
    made = getattr(transformers, config)(num_hidden_layers=2, layer_types=kinds)
    model = torch.nn.Module()
    model.config = made
    with pytest.raises(ValueError, match=kinds[0]):
        HFCache(model, lambda *_: pytest.fail("a cache was made"))


def test_a_latent_is_no_pair_of_keys_and_values():
    model = torch.nn.Module()
    model.config = transformers.DeepseekV3Config(num_hidden_layers=1)
    with pytest.raises(ValueError, match="MLA"):
        HFCache(model, lambda *_: pytest.fail("a cache was made"))


def test_two_tiers_name_blocks_by_tokens_and_refuse_what_has_none():
    model = under("llama", "kvlib")
    cache = EXACT["tiered"](model)
    embedded = model.get_input_embeddings()(IDS)
    with pytest.raises(ValueError, match="named by tokens"), torch.no_grad():
        model(inputs_embeds=embedded, cache=cache)
    with pytest.raises(ValueError, match="named by tokens"), torch.no_grad():
        model.model(IDS, cache=cache)  # past the hook
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="name pads like tokens"):
        logits(model, PADDED, cache, MASK)
    assert_rows(cache, 60)
    cache.close()


@ways
def test_without_a_cache_of_kvlib_the_attention_is_sdpas(way):
    model = under("mistral", "kvlib")
    cache = transformers.DynamicCache(config=model.config) if way == "plain" else None
    got = text(model, cache)
    assert torch.equal(got, expected("mistral"))


# The interface itself


def test_kvlib_and_its_caches_need_no_transformers():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import kvlib; kvlib.PagedKVCache\n"
        "try:\n    import kvlib.tensors.hf\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert RANGE in done.stdout and "not installed" in done.stdout


@pytest.mark.parametrize("version", ["4.57.1", "5.23.9", "6.0.0", "6.0.0.dev0", "nonsense"])
def test_another_version_gets_one_error_that_names_the_range(version, monkeypatch):
    model = tiny("llama")
    monkeypatch.setattr(import_module("transformers"), "__version__", version)
    with pytest.raises(UnsupportedTransformers, match=RANGE) as error:
        EXACT["paged"](model)
    assert f"found {version}" in str(error.value) and isinstance(error.value, ImportError)


@pytest.mark.parametrize("version", ["5.24.0", "5.24.0.dev0", "5.40.2"])
def test_a_version_of_the_range_is_taken(version, monkeypatch):
    monkeypatch.setattr(import_module("transformers"), "__version__", version)
    assert require_transformers().__version__ == version


@pytest.mark.parametrize(
    "thing, name", [("Cache", "reorder_cache"), ("Cache", "crop"), ("CacheLayerMixin", "update")]
)
def test_a_method_that_is_gone_is_named(thing, name, monkeypatch):
    monkeypatch.delattr(getattr(transformers.cache_utils, thing), name)
    with pytest.raises(UnsupportedTransformers, match=f"no {thing}.{name}"):
        require_transformers()


def test_a_part_that_is_gone_or_new_is_named(monkeypatch):
    layer = transformers.cache_utils.CacheLayerMixin
    with monkeypatch.context() as patched:
        patched.setattr(layer, "__abstractmethods__", layer.__abstractmethods__ | {"to_disk"})
        with pytest.raises(UnsupportedTransformers, match="asks a cache layer for more: to_disk"):
            require_transformers()
    monkeypatch.delattr(transformers.masking_utils, "AttentionMaskInterface")
    with pytest.raises(UnsupportedTransformers, match=r"masking_utils\.AttentionMaskInterface"):
        require_transformers()
