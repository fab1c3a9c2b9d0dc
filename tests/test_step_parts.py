"""A step is told apart into one new token a sequence and several, and into the blocks it fills."""

import pytest

from kvlib.paged_ledger import PagedLedger
from kvlib.step_parts import is_decode, last_in_block, part_of, single_lens


@pytest.fixture
def step():
    """Blocks of 2: "a" takes 3 tokens, "b" one on top of 3, "c" 2 on top of 1, "d" its first."""
    ledger = PagedLedger(num_blocks=9, block_size=2)
    for seq_id in "abcd":
        ledger.add(seq_id)
    ledger.commit(ledger.plan({"b": [1, 2, 3], "c": [4]}))
    return ledger.plan({"a": [5, 6, 7], "b": [8], "c": [9, 10], "d": [11]})


def test_the_step_that_all_these_tests_are_about(step):
    assert step.query_start == (0, 3, 4, 6, 7) and step.context_lens == (3, 4, 3, 1)
    assert step.positions == (0, 1, 2, 3, 1, 2, 0)
    assert step.slot_mapping == (6, 7, 8, 3, 5, 10, 12)
    assert step.block_table == ((3, 4), (0, 1), (2, 5), (6, 9))


@pytest.mark.parametrize("padded", [False, True])
def test_the_sequences_with_one_new_token_are_a_step_of_their_own(step, padded):
    part, rows = part_of(step.pad(9, 6, 9) if padded else step, single=True)
    assert rows == [3, 6]
    assert (part.seq_ids, part.positions, part.slot_mapping) == (("b", "d"), (3, 0), (3, 12))
    assert (part.query_start, part.context_lens) == ((0, 1, 2), (4, 1))
    assert part.block_table == (step.block_table[1], step.block_table[3])
    assert is_decode(part) and single_lens(part) == [4, 1]


@pytest.mark.parametrize("padded", [False, True])
def test_and_so_are_those_with_several(step, padded):
    part, rows = part_of(step.pad(9, 6, 9) if padded else step, single=False)
    assert rows == [0, 1, 2, 4, 5]
    assert (part.seq_ids, part.positions) == (("a", "c"), (0, 1, 2, 1, 2))
    assert part.slot_mapping == (6, 7, 8, 5, 10)
    assert (part.query_start, part.context_lens) == ((0, 3, 5), (3, 3))
    assert part.block_table == (step.block_table[0], step.block_table[2])
    assert not is_decode(part) and single_lens(part) == []


def test_padding_is_no_new_token(step):
    decode = part_of(step, single=True)[0]
    assert is_decode(decode.pad(4, 4, 9)) and single_lens(decode.pad(4, 4, 9)) == [4, 1]
    assert not is_decode(step) and single_lens(step) == [4, 1]


def test_two_new_tokens_are_several():
    ledger = PagedLedger(num_blocks=2, block_size=2)
    ledger.add("a")
    two = ledger.plan({"a": [1, 2]})
    assert not is_decode(two) and single_lens(two) == []
    assert part_of(two, single=False) == (two, [0, 1])


def test_a_block_is_left_at_the_last_token_that_goes_into_it(step):
    """In blocks 3, 4, 1, 2, 5 and 6: the first of the seven tokens alone is followed in its own."""
    assert last_in_block(step) == last_in_block(step.pad(9, 6, 6)) == [1, 2, 3, 4, 5, 6]
    assert last_in_block(part_of(step, single=False)[0]) == [1, 2, 3, 4]


def test_a_step_of_nothing_has_no_parts():
    empty = PagedLedger(num_blocks=1, block_size=2).plan({})
    assert is_decode(empty) and single_lens(empty) == last_in_block(empty) == []
    assert part_of(empty, single=True)[1] == []
