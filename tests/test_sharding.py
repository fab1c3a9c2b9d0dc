"""Who holds what, when a cache is cut by heads or by tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.sharding import (
    HeadShare,
    _even_spans,
    head_shares,
    owner,
    tokens_held,
    wire_bytes_by_heads,
    wire_bytes_by_tokens,
)

few = st.integers(1, 9)


@given(st.integers(0, 40), few)
def test_spans_are_consecutive_and_even(total, parts):
    spans = _even_spans(total, parts)
    assert [i for span in spans for i in span] == list(range(total))
    sizes = [len(span) for span in spans]
    assert len(spans) == parts and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "total, parts, says",
    [(-1, 2, "total"), (1.5, 2, "total"), (3, 0, "parts"), (3, -1, "parts"), (3, 1.0, "parts")],
)
def test_spans_of_no_whole_number_are_refused(total, parts, says):
    with pytest.raises((TypeError, ValueError), match=f"{says} must be"):
        _even_spans(total, parts)


def test_spans_are_longest_first_and_may_be_empty():
    assert _even_spans(5, 3) == [range(0, 2), range(2, 4), range(4, 5)]
    assert _even_spans(0, 2) == [range(0, 0)] * 2


def test_shares_by_hand():
    assert head_shares(5, 2) == [HeadShare(range(0, 3), 0, 1), HeadShare(range(3, 5), 0, 1)]
    assert head_shares(2, 3) == [
        HeadShare(range(0, 1), 0, 2),
        HeadShare(range(0, 1), 1, 2),
        HeadShare(range(1, 2), 0, 1),
    ]
    assert len(set(head_shares(2, 2) + head_shares(2, 2))) == 2  # equal shares are one
    assert [share.q_heads(12, 3) for share in head_shares(3, 2)] == [range(0, 8), range(8, 12)]


@given(few, few, few)
def test_every_query_head_is_answered_once_by_a_rank_that_stores_its_keys(kv, group, num_ranks):
    shares = head_shares(kv, num_ranks)
    answered = [share.q_heads(kv * group, kv) for share in shares]
    assert [h for heads in answered for h in heads] == list(range(kv * group))
    for share, heads in zip(shares, answered, strict=True):
        assert len(share.kv_heads) >= 1
        assert {h // group for h in heads} <= set(share.kv_heads)


@given(few, few)
def test_heads_are_stored_twice_only_where_ranks_are_more(kv, num_ranks):
    stored = sum(len(share.kv_heads) for share in head_shares(kv, num_ranks))
    assert stored == max(kv, num_ranks)


def test_query_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="7 and 2"):
        head_shares(2, 2)[0].q_heads(7, 2)


@pytest.mark.parametrize("call", [lambda: head_shares(0, 1), lambda: head_shares(2, 0)])
def test_no_head_or_no_rank_is_refused(call):
    with pytest.raises(ValueError, match="at least 1"):
        call()


@given(st.integers(0, 60), few, few)
def test_tokens_held_counts_the_tokens_a_rank_owns(num_tokens, num_ranks, block_size):
    owners = [owner(p, num_ranks, block_size) for p in range(num_tokens)]
    for rank in range(num_ranks):
        assert tokens_held(num_tokens, rank, num_ranks, block_size) == owners.count(rank)


def test_blocks_go_round():
    """Blocks of 4 over three ranks; 26 tokens are six blocks and two tokens of a seventh."""
    assert [owner(p, 3, 4) for p in (0, 3, 4, 7, 8, 12, 25)] == [0, 0, 1, 1, 2, 0, 0]
    assert [tokens_held(26, rank, 3, 4) for rank in range(3)] == [10, 8, 8]
    assert [tokens_held(18, rank, 3, 4) for rank in range(3)] == [8, 6, 4]


def test_wire_bytes_by_hand():
    """SmolLM2's 9 query and 3 KV heads on 2 ranks: 6 heads of 64 float32 numbers, padded."""
    assert wire_bytes_by_heads(1, 9, 3, 64, 2, itemsize=4) == 6 * 64 * 4
    assert wire_bytes_by_tokens(1, 9, 64, 2) == 9 * 65 * 4
    assert wire_bytes_by_heads(5, 9, 3, 64, 3, itemsize=2) == 5 * 3 * 64 * 2 * 2
    assert wire_bytes_by_tokens(5, 9, 64, 3) == 5 * 9 * 65 * 4 * 2
    assert wire_bytes_by_heads(5, 9, 3, 64, 1, 4) == wire_bytes_by_tokens(5, 9, 64, 1) == 0
