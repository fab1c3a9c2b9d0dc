"""Siblings of the public cases about attention: every cache and every way, in every type.

Scores that half precision cannot hold, sums that it cannot add up, numbers that are none, heads
that share a key, pads, and offsets that 32 bits cannot count: what is compared is float64 attention
over what a cache holds.
"""

import math
from dataclasses import replace
from random import Random

import pytest
import torch

from every_cache import CACHES, DIM, HALVES, SHAPE, run, text
from exact_caches import EXACT
from kvlib.sizes import KVShape
from kvlib.tensors.attention import contiguous_attention, reference_attention
from kvlib.tensors.attention_parts import merge, partial_attention
from kvlib.tensors.hf_groups import attend_explicitly
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.paged_attention import CHUNK_TOKENS, paged_attention
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.seen_attention import attend_in_chunks, seen_attention
from kvlib.tensors.step import NoCache
from kvlib.tensors.way_choice import choose_way

BY_TORCH = ("contiguous", "growing", "aligned", "snap", "paged, gather")
every_cache = pytest.mark.parametrize("name", CACHES)
chunked = pytest.mark.parametrize("chunks", [(12,), (1,) * 12, (5, 1, 6)], ids=str)


@every_cache
@chunked
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_scores_beyond_half_precision_are_kept_by_every_cache(name, chunks, dtype):
    """Scores of some 100,000: one key has all the weight, and half precision has no such number."""
    k, v, q = text(12, loud=200.0, dtype=dtype)
    expected, _ = reference_attention(q, k, v)
    assert (k[0, 0].double() @ k[0, 0].double()) > 65_504
    got = run(CACHES[name](12, dtype=dtype), k, v, q, chunks)
    torch.testing.assert_close(got.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_scores_beyond_half_precision_are_kept_where_they_are_capped(dtype):
    k, v, q = text(12, loud=200.0, dtype=dtype)
    scale, cap = 1e-4, 3.0
    got = attend_explicitly(q, k.transpose(0, 1), v.transpose(0, 1), None, scale, cap)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double().repeat_interleave(2, 1)) * scale
    seen = torch.ones(12, 12, dtype=torch.bool).tril()
    weights = (cap * torch.tanh(scores / cap)).masked_fill(~seen, -math.inf).softmax(-1)
    expected = torch.einsum("hqk,khd->qhd", weights, v.double().repeat_interleave(2, 1))
    torch.testing.assert_close(got.double(), expected, rtol=1e-2, atol=1e-2)


@every_cache
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_mean_of_many_values_is_their_mean(name, dtype):
    """Added up in half precision, ones would stop at 256 in bfloat16 and at 2,048 in float16."""
    many = 2 * CHUNK_TOKENS + 1200
    k = torch.zeros(many, 2, DIM, dtype=dtype)
    v = torch.ones(many, 2, DIM, dtype=dtype)
    v[::2] = 3.0
    cache = CACHES[name](many, dtype=dtype)
    out = run(cache, k, v, torch.ones(many, 4, DIM, dtype=dtype), (many - 1, 1))
    assert out[-1].float().flatten().tolist() == pytest.approx([2.0] * 4 * DIM, rel=1e-2)


@pytest.mark.parametrize(
    "where, name",
    [
        (w, n)
        for w in ("key", "value", "query")
        for n in CACHES
        if w == "value" or n not in BY_TORCH
    ],
)
def test_a_number_that_is_none_shows_in_its_sequence_and_in_no_other(where, name):
    """Zeros in its place would hide that a model broke; that nothing is seen gives zeros.

    Torch's fused kernel without a mask gives zeros where every score is none; it is not ours.
    """
    k, v, q = text(6)
    bad = [each.clone() for each in (k, v, q)]
    bad[["key", "value", "query"].index(where)][:, :, 3] = math.nan
    cache = CACHES[name](8)
    run(cache, *bad, (5,), "broken")
    run(cache, k, v, q, (5,), "whole")
    both = [
        torch.cat([broken[5:], whole[5:]]) for broken, whole in zip(bad, (k, v, q), strict=True)
    ]
    with cache.step({"broken": [0], "whole": [0]}) as plan:
        cache.write(0, *both[:2], plan)
        out = cache.attend(0, both[2], plan)
    expected, _ = reference_attention(q, k, v)
    torch.testing.assert_close(out[1].double(), expected[5], rtol=1e-5, atol=1e-5)
    where_nan = out[0].isnan()
    assert where_nan[:, 3].all() if where == "value" else where_nan.all()


@every_cache
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_what_all_values_say_is_said_however_loud_the_scores(name, dtype):
    """Weights add up to 1, beside scores of a million too, and over parts that are merged."""
    k = torch.full((1100, 2, DIM), 200.0, dtype=dtype)
    cache = CACHES[name](1100, dtype=dtype)
    out = run(cache, k, torch.full_like(k, 3.0), k.repeat(1, 2, 1) * 4, (1099, 1))
    assert out[-1].float().flatten().tolist() == pytest.approx([3.0] * 4 * DIM, rel=5e-3)


@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_parts_with_a_number_that_is_none_merge_to_none(num_parts):
    whole = [(torch.ones(2, 3), torch.zeros(2)) for _ in range(num_parts)]
    whole[-1][0][0] = math.nan
    whole[-1][1][0] = math.nan
    out, lse = merge(whole)
    assert out[0].isnan().all() and lse[0].isnan()
    assert out[1].tolist() == pytest.approx([1, 1, 1])


def test_no_part_at_all_is_refused_in_words_and_nothing_held_is_nothing():
    with pytest.raises(ValueError, match="at least one part"):
        merge([])
    keys = torch.zeros(1, 0, DIM)
    for out, lse in (
        seen_attention(torch.ones(3, 2, DIM), keys, keys, torch.zeros(3)),
        partial_attention(torch.ones(3, 2, DIM), keys, keys, 0, 0, None),
    ):
        assert not out.any() and (lse == -math.inf).all() and out.shape == (3, 2, DIM)
    side, blocks = torch.zeros(2, 1, 4, DIM), torch.zeros(0, dtype=torch.int32)
    out, lse = attend_in_chunks(torch.ones(3, 2, DIM), side, side, blocks, 0, torch.zeros(3))
    assert out.shape == (3, 2, DIM) and not out.any() and (lse == -math.inf).all()


@pytest.mark.parametrize("way", ["gather", "chunked", "cpu"])
def test_an_offset_beyond_two_to_the_31_numbers_is_read(way):
    """The memory is asked for and, but for two blocks of it, never touched."""
    dim, num_blocks = 512, 2**22 + 2
    try:
        choose_way(way, torch.device("cpu"), torch.float16, KVShape(1, 1, dim), 1)
        side = torch.empty(num_blocks, 1, 1, dim, dtype=torch.float16)
    except (ValueError, RuntimeError) as error:
        pytest.skip(str(error))
    last = num_blocks - 1
    side[0], side[last] = 5.0, 1.0
    assert side[last].storage_offset() > 2**31 - 1
    cache = PagedKVCache(KVShape(1, 1, dim), 1, 1, way=way, dtype=torch.float16)
    cache.add("a")
    plan = cache.plan({"a": [0]})
    table = torch.tensor([[last]], dtype=torch.int32)
    context = replace(plan.context, block_table=table)
    q = torch.ones(1, 2, dim, dtype=torch.float16)
    out, _ = paged_attention(q, side, side, context, way=way)
    assert (out == 1.0).all()


def test_heads_are_mapped_in_groups_however_many_share_a_key():
    """Multi-query models have one KV head and as many query heads as they like."""
    draw = Random(7)
    for kv_heads, group in ((1, 71), (3, 5), (8, 1), (1, 64), (2, 40)):
        shape = KVShape(1, kv_heads, 8)
        k = torch.zeros(5, kv_heads, 8)
        v = torch.arange(float(kv_heads))[None, :, None].expand(5, -1, 8).contiguous()
        q = torch.full((5, kv_heads * group, 8), draw.random())
        expected = [head // group for head in range(kv_heads * group)]
        for cache in (EXACT["contiguous"](shape), EXACT["paged"](shape)):
            out = run(cache, k, v, q, (4, 1))
            assert out[-1, :, 0].tolist() == pytest.approx(expected)
        out = contiguous_attention(q, k.transpose(0, 1), v.transpose(0, 1))
        assert out[0, :, 0].tolist() == pytest.approx(expected)


QUANTIZED = {
    f"quantized, {way}": lambda n, way=way, **o: QuantizedKVCache(
        SHAPE, n, 4, num_seqs=2, way=way, **o
    )
    for way in ("cpu", "dequantize")
}


@pytest.mark.parametrize("name", [*CACHES, *QUANTIZED, "none"])
def test_a_query_that_belongs_to_no_token_is_refused(name):
    """Its row would come back as the allocator left it, and fewer rows would see other tokens."""
    make = {**CACHES, **QUANTIZED, "none": lambda n: NoCache()}[name]
    cache, (k, v, q) = make(8), text(5)
    if name != "none":
        run(cache, k[:3], v[:3], q[:3], (3,))
    with cache.step({"a": [0, 0]}) as plan:
        cache.write(0, k[3:], v[3:], plan)
        for wrong in (q[:4], q[:1], q[:0], q[3:, :3], q[3:, :, :9], q[3:, 0]):
            with pytest.raises(ValueError, match=r"q must be|query heads|head_dim|one dtype"):
                cache.attend(0, wrong, plan)
        cache.attend(0, q[3:], plan)
