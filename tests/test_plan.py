"""A step plan by hand: what padding adds, and what it leaves as it was."""

import pytest

from kvlib.plan import BlockCopy, StepPlan

STEP = StepPlan(
    seq_ids=("a",),
    positions=(4, 5),
    slot_mapping=(8, 9),
    query_start=(0, 2),
    context_lens=(6,),
    block_table=((7, 2),),
    block_size=4,
    plan_id=3,
    copies=(BlockCopy(1, 2, 3),),
)


def test_padding_adds_empty_sequences_and_tokens_of_the_null_block():
    padded = STEP.pad(num_tokens=5, num_seqs=3, null_block_id=9)
    assert padded == StepPlan(
        seq_ids=("a", None, None),
        positions=(4, 5, 0, 0, 0),
        slot_mapping=(8, 9, 36, 36, 36),
        query_start=(0, 2, 2, 2),
        context_lens=(6, 0, 0),
        block_table=((7, 2), (9, 9), (9, 9)),
        block_size=4,
        plan_id=3,
        copies=(BlockCopy(1, 2, 3),),
    )
    assert (STEP.num_tokens, STEP.num_seqs) == (2, 1)
    assert (padded.num_tokens, padded.num_seqs) == (5, 3)


def test_either_may_be_padded_alone():
    assert STEP.pad(2, 2, 9).slot_mapping == (8, 9)
    assert STEP.pad(3, 1, 9).block_table == ((7, 2),)
    assert STEP.pad(2, 1, 9) == STEP


@pytest.mark.parametrize("shape", [(1, 1), (2, 0), (1, 5), (5, 0)])
def test_padding_never_shrinks_a_step(shape):
    said = f"asked for {shape[0]} tokens in {shape[1]} sequences, the step has 2 in 1"
    with pytest.raises(ValueError, match=said):
        STEP.pad(*shape, null_block_id=9)


def test_a_plan_is_a_value():
    with pytest.raises(AttributeError):
        STEP.plan_id = 4
    assert StepPlan((), (), (), (0,), (), (), 4, 0).copies == ()
