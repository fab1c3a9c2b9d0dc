"""Where a step's keys lie, on the device and on the host, and which of them each token sees."""

from dataclasses import FrozenInstanceError

import pytest
import torch

from kvlib.tensors.paged_context import PagedContext
from paged_step import LENGTHS, TABLE, context, host

META = torch.device("meta")


def test_the_tables_are_on_the_device_as_the_plan_says():
    made = context()
    assert made.block_table.tolist() == [list(row) for row in TABLE]
    assert made.context_lens.tolist() == LENGTHS
    assert made.query_start.tolist() == [0, 1, 11, 11, 19, 19]
    tensors = made.block_table, made.context_lens, made.query_start
    assert {each.dtype for each in tensors} == {torch.int32}
    there = PagedContext.of(host(), META)
    assert there.block_table.is_meta and there.context_lens.is_meta and there.query_start.is_meta
    assert there.rows_of(None).is_meta


def test_a_step_of_nobody_has_empty_tables():
    nobody = dict.fromkeys(("seq_ids", "positions", "context_lens", "block_table"), ())
    made = context(**nobody, slot_mapping=(), query_start=(0,))
    assert made.block_table.shape == (0, 0) and made.rows_of(3).shape == (3, 0)
    assert made.spans(None) == () and made.num_seen(None) == 0


def test_a_table_has_room_for_every_token_or_is_refused():
    whole = context(context_lens=(9, 16, 2, 8, 0))
    assert whole.context_lens[1] == 16
    with pytest.raises(ValueError, match="'b' has 4 blocks of 4, too short for its 17 tokens"):
        context(context_lens=(9, 17, 2, 8, 0))


def test_a_plan_with_more_sequences_than_lengths_is_refused():
    with pytest.raises(ValueError):
        context(context_lens=tuple(LENGTHS[:4]))


@pytest.mark.parametrize(
    "window, firsts", [(None, (0, 0, 0)), (1, (8, 3, 0)), (3, (6, 1, 0)), (6, (3, 0, 0))]
)
def test_a_span_is_what_any_new_token_of_a_sequence_sees(window, firsts):
    made = context()
    a, b, d = firsts
    expected = (
        (0, slice(0, 1), a, 9),
        (1, slice(1, 11), b, 13),
        (3, slice(11, 19), d, 8),
    )
    assert made.spans(window) == expected
    assert made.num_seen(window) == 30 - sum(firsts)
    assert made.spans(window) is made.spans(window)  # made once for all layers
    assert made.rows_of(window) is made.rows_of(window)


def test_each_row_sees_the_positions_up_to_its_own():
    made = context()
    owner, first, end = made.rows_of(3).tolist()
    assert owner == [0, *[1] * 10, *[3] * 8, 0, 0]
    assert end == [9, *range(4, 14), *range(1, 9), 0, 0]  # padding sees nothing
    assert first == [6, *range(1, 11), 0, 0, 0, *range(1, 6), 0, 0]
    assert made.rows_of(3).dtype == torch.int32
    assert not made.rows_of(None)[1].any() and made.rows_of(None)[2].tolist() == end


def test_what_was_made_for_a_step_is_no_part_of_what_a_context_is():
    made = context()
    before = repr(made)
    made.spans(None), made.rows_of(None)
    again = PagedContext(made.host, made.block_table, made.context_lens, made.query_start)
    assert repr(made) == before and again == made
    with pytest.raises(FrozenInstanceError):
        made.host = None
