"""Bounds hold for every key, choices follow them, and what stays unread is bounded too."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.tensors.block_bounds import block_bounds, block_extremes, top_blocks, unread_share

SIZES = st.tuples(*(st.integers(1, n) for n in (4, 3, 5, 6)))


def drawn(sizes, seed, spread):
    """Keys [M, Hkv, B, D] and a query [1, Hkv * 2, D], of one sign or of both."""
    generator = torch.Generator().manual_seed(seed)
    blocks, heads, slots, dim = sizes
    keys = spread * torch.randn(blocks, heads, slots, dim, generator=generator)
    keys += torch.randn(blocks, heads, 1, dim, generator=generator)
    filled = torch.randint(1, slots + 1, (blocks,), generator=generator)
    return keys, filled, torch.randn(1, heads * 2, dim, generator=generator)


def scores(q, keys):
    """Returns every query head's score with every key, [Hkv, G, M, B]."""
    grouped = q.reshape(keys.shape[1], 2, -1)
    return torch.einsum("hgd,mhbd->hgmb", grouped, keys)


@settings(max_examples=60)
@given(SIZES, st.integers(0, 2**16), st.sampled_from([0.0, 0.1, 1.0, 30.0]))
def test_no_key_scores_above_its_blocks_bound(sizes, seed, spread):
    keys, filled, q = drawn(sizes, seed, spread)
    valid = torch.arange(keys.shape[2]) < filled[:, None]
    poisoned = torch.where(valid[:, None, :, None], keys, torch.nan)
    bounds = block_bounds(q, block_extremes(poisoned, filled)[:, None])[0]
    got = scores(q, keys).masked_fill(~valid, -math.inf).amax(-1)
    assert bounds.shape == got.shape
    assert (got <= bounds + 1e-4 * (1 + bounds.abs())).all()


@given(SIZES, st.integers(0, 2**16))
def test_a_block_of_one_key_is_bounded_by_its_score(sizes, seed):
    keys, _, q = drawn(sizes, seed, 1.0)
    bounds = block_bounds(q, block_extremes(keys, torch.ones(len(keys)))[:, None])[0]
    torch.testing.assert_close(bounds, scores(q, keys)[..., 0], rtol=1e-4, atol=1e-4)


def test_both_signs_of_the_query_take_the_side_that_is_larger():
    """Channel 0 spans [-2, 3], channel 1 [4, 5]: 2 * 3 - 4 and 2 * 2 + 5, by hand."""
    extremes = torch.tensor([[-2.0, 4.0], [3.0, 5.0]]).reshape(2, 1, 1, 1, 2)
    for q, expected in (((2.0, -1.0), 2.0), ((-2.0, 1.0), 9.0), ((0.0, 0.0), 0.0)):
        assert block_bounds(torch.tensor(q).reshape(1, 1, 2), extremes).item() == expected


def test_the_last_block_is_always_chosen_and_stands_last():
    bounds = torch.tensor([5.0, 1.0, 9.0, 0.0, 7.0]).reshape(1, 1, 1, 5)
    for num_blocks, first, expected in (
        (5, 0, [2, 4]),
        (4, 0, [2, 3]),
        (5, 1, [0, 4]),
        (3, 0, [0, 2]),
        (2, 0, [0, 1]),
    ):
        got = top_blocks(bounds, torch.tensor([num_blocks]), 2, first)
        assert got.flatten().tolist() == expected
    assert top_blocks(bounds, torch.tensor([1]), 2)[0, 0, 0] == 0


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_what_is_always_read_goes_before_a_strange_bound(strange):
    bounds = torch.full((1, 1, 1, 4), strange)
    assert top_blocks(bounds, torch.tensor([4]), 2, 1).tolist() == [[[0, 3]]]


@pytest.mark.parametrize(
    "strange, chosen", [(math.nan, 0), (math.inf, 0), (-math.inf, 1), (-1e38, 1), (1e38, 0)]
)
def test_a_bound_that_nobody_knows_may_be_the_highest(strange, chosen):
    bounds = torch.tensor([strange, 5.0, 0.0, 1.0]).reshape(1, 1, 1, 4)
    assert top_blocks(bounds, torch.tensor([4]), 2).tolist() == [[[chosen, 3]]]


def test_each_token_and_kv_head_chooses_among_its_own_blocks():
    bounds = torch.tensor(
        [[[[9.0, 1, 2, 3]], [[1.0, 9, 2, 3]]], [[[0.0, 0, 9, 9]], [[3.0, 4, 5, 6]]]]
    )
    got = top_blocks(bounds, torch.tensor([4, 2]), 2)
    assert got.tolist() == [[[0, 3], [1, 3]], [[0, 1], [0, 1]]] and got.dtype == torch.int64


def test_the_share_is_what_the_unread_could_weigh_at_most():
    """Read: weight 2. Unread: two keys of at most 1 and one of at most 4, halved scores."""
    bounds = 2 * torch.tensor([9.0, 0.0, math.log(4), 9.0])
    filled, read = torch.tensor([1, 2, 1, 0]), torch.tensor([True, False, False, False])
    got = unread_share(bounds, filled, read, torch.tensor(math.log(2)), scale=0.5)
    assert got.item() == pytest.approx(6 / 8)


def test_query_heads_of_a_kv_head_choose_together():
    """One free place: block 0 could matter most to one of them, block 1 more to both together."""
    bounds = torch.tensor([[9.0, 7.0, 0.0], [-9.0, 7.0, 0.0]]).reshape(1, 1, 2, 3)
    assert top_blocks(bounds, torch.tensor([3]), 2).tolist() == [[[0, 2]]]


@settings(max_examples=60)
@given(SIZES, st.integers(0, 2**16), st.sampled_from([0.1, 1.0, 5.0]))
def test_the_output_differs_by_no_more_than_the_unread_share_allows(sizes, seed, spread):
    keys, filled, q = drawn(sizes, seed, spread)
    blocks, heads, slots, dim = keys.shape
    generator = torch.Generator().manual_seed(seed + 1)
    values = torch.randn(keys.shape, generator=generator)
    read = torch.rand(blocks, generator=generator) < 0.5
    read[-1] = True
    valid = torch.arange(slots) < filled[:, None]
    bounds = block_bounds(q, block_extremes(keys, filled)[:, None])[0]
    scale = dim**-0.5
    for h in range(heads):
        every = (scale * scores(q, keys)[h]).double().masked_fill(~valid, -math.inf)
        some = every.masked_fill(~read[:, None], -math.inf)
        weigh = [
            x.flatten(1).softmax(1) @ values[:, h].double().flatten(0, 1) for x in (every, some)
        ]
        lse = some.flatten(1).logsumexp(1).float()
        share = unread_share(bounds[h], filled.expand(2, -1), read.expand(2, -1), lse, scale)
        true_share = 1 - (lse.double() - every.flatten(1).logsumexp(1)).exp()
        assert (true_share <= share + 1e-5).all() and (share <= 1).all()
        held = values[:, h][valid]
        span = held.amax(0) - held.amin(0)
        assert ((weigh[0] - weigh[1]).abs() <= share[:, None] * span + 1e-5).all()


def test_nothing_unread_means_no_share():
    got = unread_share(
        torch.tensor([3.0, math.inf]),
        torch.tensor([2, 0]),
        torch.tensor([True, False]),
        torch.tensor(1.0),
        1.0,
    )
    assert got.item() == 0
