"""The stepper shows the slots that a ledger would give."""

import pytest

from kvlib.block_table import num_blocks_for
from kvlib.show.drawings.logical_to_physical import SLOTS, STEPS, after, logical_to_physical


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_blocks_are_as_many_as_the_tokens_need_and_nobody_shares_one(block_size):
    for step in range(len(STEPS) + 1):
        now = after(step, block_size)
        for name in "ab":
            assert now.lengths[name] == STEPS[:step].count(name)
            assert len(now.blocks[name]) == num_blocks_for(now.lengths[name], block_size)
        both = now.blocks["a"] + now.blocks["b"]
        assert len(set(both)) == len(both) <= SLOTS // block_size


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_the_picture_names_the_slot_of_the_newest_token(block_size):
    taken = set()
    for step, name in enumerate(STEPS, start=1):
        now = after(step, block_size)
        logical, offset = divmod(now.lengths[name] - 1, block_size)
        slot = now.blocks[name][logical] * block_size + offset
        assert f"of sequence {name} is in slot {slot}<" in logical_to_physical(step, block_size)
        taken.add(slot)
    assert len(taken) == len(STEPS)


def test_a_block_is_taken_at_the_boundary():
    taken = [step for step in range(1, len(STEPS) + 1) if after(step, 4).took]
    lengths = [after(step, 4).lengths[STEPS[step - 1]] for step in taken]
    assert lengths == [1, 1, 5, 5, 9]
