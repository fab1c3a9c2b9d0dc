"""Attention against known answers, against the reference, and against a shifted mask."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlib.tensors import attention
from kvlib.tensors.attention import causal_mask, contiguous_attention, reference_attention

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def both_ways(q, k, v, **options):
    """The reference and the fast way on the same tokens, as float64 [Tq, Hq, D]."""
    expected, _ = reference_attention(q, k, v, **options)
    got = contiguous_attention(q, k.transpose(0, 1), v.transpose(0, 1), **options)
    return expected, got.double()


def equal_scores(num_queries, values, **options):
    """What each query averages when all scores are equal: shows exactly what it sees."""
    v = torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1)
    q, k = torch.zeros(num_queries, 1, 1), torch.zeros_like(v)
    expected, got = both_ways(q, k, v, **options)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    return [round(x, 6) for x in got.flatten().tolist()]


def test_new_queries_see_the_cache_and_themselves():
    assert equal_scores(2, [0, 1, 2, 3, 4, 5]) == [2.0, 2.5]


def test_a_single_query_sees_every_key():
    assert equal_scores(1, [0, 1, 2, 3, 4]) == [2.0]


def test_a_prompt_on_an_empty_cache_is_lower_triangular():
    assert equal_scores(4, [0, 1, 2, 3]) == [0.0, 0.5, 1.0, 1.5]


def test_chunks_give_what_one_prompt_gives():
    whole = equal_scores(6, range(6))
    chunks = equal_scores(3, range(3)) + equal_scores(2, range(5)) + equal_scores(1, range(6))
    assert chunks == whole == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]


def test_a_window_counts_the_query_itself():
    assert equal_scores(8, range(8), window=4) == [0.0, 0.5, 1.0, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert equal_scores(1, range(8), window=4) == [5.5]
    assert equal_scores(3, range(3), window=1) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_mask_shifted_by_one_is_caught(shift):
    right = causal_mask(3, 7)
    wrong = torch.ones(3, 7).tril(diagonal=4 + shift).bool()
    assert torch.equal(right, torch.ones(3, 7).tril(diagonal=4).bool())
    assert not torch.equal(right, wrong)


def test_the_kernels_own_causal_flag_would_hide_the_cache():
    """Why contiguous_attention passes a mask: is_causal aligns to the upper left."""
    q, k = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 6, 1)
    v = torch.arange(6.0).reshape(1, 1, 6, 1)
    flagged = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert flagged.flatten().tolist() == [0.0, 0.5]


def test_each_query_head_reads_its_own_group():
    v = torch.tensor([1.0, 2.0]).reshape(1, 2, 1)
    expected, got = both_ways(torch.zeros(1, 4, 1), torch.zeros(1, 2, 1), v)
    assert got.flatten().tolist() == expected.flatten().tolist() == [1.0, 1.0, 2.0, 2.0]


def test_large_scores_neither_overflow_nor_turn_to_nan():
    big = torch.full((2, 1, 128), 256.0, dtype=torch.float16)
    v = torch.tensor([1.0, 3.0], dtype=torch.float16).reshape(2, 1, 1).expand(2, 1, 128)
    expected, got = both_ways(big[:1], big, v.contiguous())
    assert (expected == 2).all()
    assert (got == 2).all()


def test_log_sum_exp_is_that_of_the_scaled_scores():
    _, lse = reference_attention(torch.zeros(1, 1, 4), torch.zeros(5, 1, 4), torch.zeros(5, 1, 4))
    assert lse.item() == pytest.approx(math.log(5))
    keys = torch.zeros(5, 1, 4)
    _, lse = reference_attention(torch.zeros(2, 3, 4), keys, keys)
    assert lse.shape == (2, 3) and lse[:, 0].exp().tolist() == pytest.approx([4, 5])


def test_a_single_query_needs_no_mask(monkeypatch):
    """Decode would make one as long as the context in every layer and step."""
    monkeypatch.setattr(attention, "causal_mask", None)
    v = torch.tensor([1.0, 3.0]).reshape(1, 2, 1)
    assert contiguous_attention(torch.zeros(1, 1, 1), torch.zeros(1, 2, 1), v).item() == 2


@given(data=st.data())
def test_the_fast_way_meets_the_reference(data):
    context_len = data.draw(st.integers(1, 33), "context_len")
    num_queries = data.draw(st.integers(0, context_len), "num_queries")
    num_kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    head_dim = data.draw(st.sampled_from([1, 8, 16, 80]))
    window = data.draw(st.one_of(st.none(), st.integers(1, 40)), "window")
    dtype = data.draw(st.sampled_from(list(TOLERANCE)))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    q = torch.randn(num_queries, num_kv_heads * group, head_dim).to(dtype)
    k, v = (torch.randn(context_len, num_kv_heads, head_dim).to(dtype) for _ in range(2))
    expected, got = both_ways(q, k, v, window=window)
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("context_len", [0, 3])
def test_no_queries_give_no_output(context_len):
    k = torch.ones(context_len, 1, 4)
    expected, got = both_ways(torch.ones(0, 2, 4), k, k)
    assert got.shape == expected.shape == (0, 2, 4)


@pytest.mark.parametrize(
    "q, k, message",
    [
        ((1, 6, 8), (1, 4, 8), "multiple of KV heads: 6 and 4"),
        ((1, 4, 8), (1, 4, 9), "one head_dim"),
        ((3, 4, 8), (2, 4, 8), "3 queries, 2 keys"),
        ((1, 8), (1, 8), "tokens, heads, head_dim"),
        ((1, 8), (1, 1, 8), "tokens, heads, head_dim"),
        ((1, 1, 8), (1, 8), "tokens, heads, head_dim"),
        ((1, 4, 8), (1, 0, 8), "multiple of KV heads: 4 and 0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(q, k, message):
    q, k = torch.zeros(q), torch.zeros(k)
    for way, keys in ((reference_attention, k), (contiguous_attention, k.transpose(0, 1))):
        with pytest.raises(ValueError, match=message):
            way(q, keys, keys)


def test_keys_and_values_are_of_one_shape():
    q, k, v = torch.zeros(1, 2, 4), torch.zeros(3, 1, 4), torch.zeros(2, 1, 4)
    with pytest.raises(ValueError, match="k and v alike"):
        reference_attention(q, k, v)


def test_a_window_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        causal_mask(1, 2, window=0)


def test_more_queries_than_context_are_refused():
    for number in (3, -1):
        with pytest.raises(ValueError, match=f"{number} queries, 2 tokens"):
            causal_mask(number, 2)
