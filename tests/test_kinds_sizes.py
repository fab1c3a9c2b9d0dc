"""Siblings of public faults in memory estimates: every formula beside a count of one by one."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib import catalog
from kvlib.memory_plan import DoesNotFit, plan_capacity, shape_on_rank
from kvlib.sharding import head_shares, tokens_held
from kvlib.sizes import DTYPE_BYTES, KVShape
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.paged import PagedKVCache

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def counted(shape, num_tokens, dtype, block_size=1):
    """Bytes of a sequence, element by element: layer by layer, block by block."""
    total = Fraction(0)
    for layer in range(shape.num_layers):
        local = layer < shape.num_local_layers
        kept = min(num_tokens, shape.window) if local else num_tokens
        slots = 0
        while slots < kept:
            slots += block_size
        if shape.num_kv_heads is None:
            row = shape.kv_lora_rank + shape.qk_rope_head_dim
        else:
            row = sum(shape.head_dim for _ in range(shape.num_kv_heads) for _side in "kv")
        total += slots * row * Fraction(DTYPE_BYTES[dtype])
    assert total.denominator == 1
    return int(total)


SHAPES = st.one_of(
    st.builds(KVShape, st.integers(1, 5), st.integers(1, 4), st.sampled_from([2, 6, 64, 80, 128])),
    st.builds(
        lambda layers, rank, rope: KVShape(layers, kv_lora_rank=rank, qk_rope_head_dim=rope),
        st.integers(1, 5),
        st.sampled_from([8, 512]),
        st.sampled_from([4, 64]),
    ),
)


@settings(max_examples=150)
@given(
    shape=SHAPES,
    window=st.one_of(st.none(), st.integers(1, 40)),
    local=st.integers(0, 5),
    num_tokens=st.integers(1, 90),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    block_size=st.sampled_from([1, 3, 16]),
)
def test_the_formula_counts_what_counting_counts(
    shape, window, local, num_tokens, dtype, block_size
):
    if window is not None:
        local = min(local, shape.num_layers)
        shape = replace(shape, window=window, num_local_layers=local)
    sized = shape.bytes_per_sequence(num_tokens, dtype, block_size=block_size)
    assert sized == counted(shape, num_tokens, dtype, block_size)


@settings(max_examples=40)
@given(
    shape=st.builds(KVShape, st.integers(1, 3), st.integers(1, 3), st.integers(1, 16)),
    dtype=st.sampled_from(sorted(DTYPES)),
    num_seqs=st.integers(1, 4),
    length=st.integers(1, 33),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_a_cache_allocates_what_the_formula_says(shape, dtype, num_seqs, length, block_size):
    place = {"dtype": DTYPES[dtype], "device": "meta"}
    rows = ContiguousKVCache(shape, num_seqs, length, **place)
    assert rows.nbytes == num_seqs * shape.bytes_per_sequence(length, dtype)
    blocks = num_seqs * -(-length // block_size)
    paged = PagedKVCache(shape, blocks, block_size, **place)
    sized = shape.bytes_per_sequence(length, dtype, block_size=block_size)
    assert num_seqs * sized == blocks * shape.bytes_per_block(block_size, dtype)
    assert paged.nbytes == num_seqs * sized + shape.bytes_per_block(block_size, dtype)


@given(heads=st.integers(1, 9), num_gpus=st.integers(1, 20), layers=st.integers(1, 6))
def test_no_rank_holds_more_than_its_plan_and_together_they_hold_all(heads, num_gpus, layers):
    """More ranks than heads store copies; fewer share unevenly, and the fullest decides."""
    shape = KVShape(layers, heads, 8)
    shares = [len(share.kv_heads) for share in head_shares(heads, num_gpus)]
    planned = shape_on_rank(shape, num_gpus).num_kv_heads
    assert planned == max(shares) == max(1, -(-heads // num_gpus))
    assert min(shares) >= 1 and sum(shares) == max(heads, num_gpus)
    covered = [head for share in head_shares(heads, num_gpus) for head in share.kv_heads]
    assert set(covered) == set(range(heads))


@given(num_tokens=st.integers(0, 90), num_ranks=st.integers(1, 5), block_size=st.integers(1, 9))
def test_tokens_on_ranks_add_up(num_tokens, num_ranks, block_size):
    held = [tokens_held(num_tokens, rank, num_ranks, block_size) for rank in range(num_ranks)]
    brute = [0] * num_ranks
    for position in range(num_tokens):
        brute[position // block_size % num_ranks] += 1
    assert held == brute


def test_a_latent_is_on_every_rank_whole():
    """Shared out it would look like four times the room that there is."""
    latent, card = catalog.model("DeepSeek-V3"), catalog.gpu("H100 SXM5")
    assert shape_on_rank(latent.kv, 8) == latent.kv
    given = {"weight_bytes": 0, "activations": 0, "graphs": 0, "runtime": 0}
    plans = [plan_capacity(latent, card, num_gpus=n, **given) for n in (1, 8)]
    assert plans[0].num_blocks == plans[1].num_blocks


MODELS = [
    name
    for name in catalog.models()
    if catalog.model(name).kv.num_kv_heads is None or not catalog.model(name).kv.num_local_layers
]


@settings(max_examples=60)
@given(
    name=st.sampled_from(MODELS),
    block_size=st.sampled_from([1, 16, 128]),
    kv_dtype=st.sampled_from(["bfloat16", "fp8", "float32"]),
    total=st.integers(1, 200),
    utilization=st.sampled_from([0.07, 0.29, 0.9, 0.92, 1.0]),
    context=st.integers(1, 20_000),
)
def test_a_plan_promises_no_request_that_its_blocks_do_not_hold(
    name, block_size, kv_dtype, total, utilization, context
):
    model, card = catalog.model(name), catalog.gpu("H100 SXM5")
    given = {"weight_bytes": 0, "activations": 0, "graphs": 0, "runtime": 0}
    given |= {"total_bytes": total * 2**24, "utilization": utilization}
    try:
        plan = plan_capacity(model, card, block_size=block_size, kv_dtype=kv_dtype, **given)
    except DoesNotFit:
        share = int(total * 2**24 * Fraction(str(utilization)))
        assert model.kv.bytes_per_block(block_size, kv_dtype) > share
        return
    assert plan.kv_bytes <= total * 2**24 * utilization + 1
    blocks = -(-context // block_size)
    fits = plan.num_blocks // blocks
    if fits:
        assert plan.max_num_seqs(context) == fits <= plan.concurrency(context)
    else:
        with pytest.raises(ValueError, match=f"{context:,} tokens"):
            plan.max_num_seqs(context)
