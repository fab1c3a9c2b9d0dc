"""Rows for less than was read: positions and slots are two counters."""

import pytest

from kvlib.budget_ledger import NO_SLOT, BudgetLedger, PromptBudgetLedger
from kvlib.plan import BlockCopy
from test_checks import found, table


def read(ledger, num_tokens, seq_id="a"):
    if seq_id not in ledger.seq_ids:
        ledger.add(seq_id)
    plan = ledger.plan({seq_id: [0] * num_tokens})
    ledger.commit(plan)
    ledger.check()
    return plan


def test_a_full_row_plans_no_slot_and_goes_on_counting_positions():
    ledger = BudgetLedger(2, 4)
    assert read(ledger, 3).slot_mapping == (0, 1, 2)
    plan = read(ledger, 3)
    assert plan.slot_mapping == (3, NO_SLOT, NO_SLOT) and plan.positions == (3, 4, 5)
    assert NO_SLOT == -1  # below every slot there is
    assert (ledger.num_held("a"), ledger.length("a"), ledger.used_tokens) == (4, 6, 4)
    assert read(ledger, 1).slot_mapping == (NO_SLOT,)


def test_what_was_given_up_does_not_come_back():
    ledger = BudgetLedger(2, 4)
    read(ledger, 6)
    for keep in range(1, 6):
        with pytest.raises(ValueError, match=f"2 of 6 tokens were given up.*go back to {keep}, on"):
            ledger.truncate("a", keep)
    ledger.truncate("a", 6)
    ledger.truncate("a", 0)
    assert ledger.num_held("a") == 0
    read(ledger, 3)
    ledger.truncate("a", 2)
    assert ledger.num_held("a") == 2


@pytest.mark.parametrize("kind", [BudgetLedger, PromptBudgetLedger])
def test_a_fork_and_a_beam_copy_what_is_held(kind):
    ledger = kind(2, 4)
    read(ledger, 6)
    assert ledger.fork("a", "b") == [BlockCopy(0, 1, 4)]
    assert (ledger.num_held("b"), ledger.length("b")) == (4, 6)
    ledger.truncate("a", 0)
    assert ledger.reorder({"a": "b", "b": "b"}) == [BlockCopy(1, 0, 4)]
    assert ledger.num_held("a") == 4
    assert (ledger.row("a"), ledger.row("b")) == (1, 0)  # the source's row goes to the first
    ledger.truncate("b", 0)
    assert ledger.reorder({"a": "b", "b": "a"}) == []
    assert (ledger.row("a"), ledger.row("b")) == (0, 1)
    assert (ledger.num_held("a"), ledger.num_held("b")) == (0, 4)
    ledger.check()


@pytest.mark.parametrize("kind", [BudgetLedger, PromptBudgetLedger])
def test_of_a_sequence_that_is_not_there_nothing_is_held(kind):
    with pytest.raises(KeyError, match="no sequence 'z'"):
        kind(2, 4).num_held("z")


@pytest.mark.parametrize("kind", [BudgetLedger, PromptBudgetLedger])
def test_a_row_is_as_long_as_its_budget_unless_it_has_room(kind):
    ledger = kind(1, 1)
    assert (ledger.budget, ledger.sinks, ledger.recent, ledger.row_len) == (1, 0, 1, 1)
    assert ledger.max_seq_len is None
    ledger = kind(1, 9, 2, 3)
    assert (ledger.budget, ledger.sinks, ledger.recent, ledger.row_len) == (9, 2, 3, 9)
    assert PromptBudgetLedger(1, 9, room=2).row_len == 11
    for room in (-1, 1.0):
        with pytest.raises((TypeError, ValueError), match="room must be"):
            PromptBudgetLedger(1, 9, room=room)


def test_rows_grow_for_the_longest_answer_of_a_step():
    ledger = PromptBudgetLedger(2, 4, room=1)
    read(ledger, 9)
    read(ledger, 2, "b")
    assert ledger.row_len_for({"a": [0], "b": [0]}) == ledger.row_len_for({}) == 5
    assert ledger.row_len_for({"a": [0], "b": [0] * 4}) == 10
    assert ledger.row_len_for({"b": [0] * 4, "a": [0] * 7}) == 20
    plan = ledger.plan({"a": [0] * 2, "b": [0]})
    assert (plan.slot_mapping, plan.context_lens) == ((4, 5, 12), (11, 3))


def test_a_prompt_is_capped_once_and_its_answer_never():
    ledger = PromptBudgetLedger(2, 4)
    assert read(ledger, 9).slot_mapping == (0, 1, 2, 3) + (NO_SLOT,) * 5
    assert ledger.num_held("a") == 4
    assert read(ledger, 1).slot_mapping == (4,) and ledger.row_len == 8
    assert read(ledger, 5).slot_mapping == (5, 6, 7, 8, 9) and ledger.row_len == 16
    assert (ledger.num_held("a"), ledger.length("a")) == (10, 15)
    # Rows are longer than the budget by now, and a prompt still gets no more than that.
    assert read(ledger, 6, "b").slot_mapping == (16, 17, 18, 19, NO_SLOT, NO_SLOT)
    assert ledger.num_held("b") == 4


def test_a_reset_sequence_has_a_prompt_again():
    ledger = PromptBudgetLedger(1, 4)
    read(ledger, 9)
    ledger.truncate("a", 0)
    read(ledger, 0)
    read(ledger, 9)
    assert ledger.num_held("a") == 4


def test_a_closed_plan_is_refused_and_changes_nothing():
    ledger = PromptBudgetLedger(1, 4)
    plan = read(ledger, 9)
    with pytest.raises(ValueError, match="this plan is not open"):
        ledger.commit(plan)
    assert ledger.num_held("a") == 4
    ledger.free("a")
    for call in (ledger.commit, ledger.abort):
        with pytest.raises(ValueError, match="this plan is not open"):
            call(plan)


@pytest.mark.parametrize("kind", [BudgetLedger, PromptBudgetLedger])
def test_a_budget_smaller_than_sinks_and_newest_is_refused(kind):
    with pytest.raises(
        ValueError, match=r"its sinks and newest tokens: asked for 4 \+ 5, there .* 8"
    ):
        kind(1, 8, sinks=4, recent=5)
    assert kind(1, 8, sinks=4, recent=4).row_len == 8


@table(
    of_nobody=(lambda g: g._gone.update(z=0), "a length without what is gone"),
    unknown=(lambda g: g._gone.pop("a"), "a length without what is gone"),
    negative=(lambda g: g._gone.update(a=-1), "7 tokens of 'a' in a row"),
    beyond=(lambda g: g._gone.update(a=7), "-1 tokens of 'a' in a row"),
    too_long=(lambda g: setattr(g, "row_len", 3), "4 tokens of 'a' in a row"),
    too_much=(lambda g: g._gone.update(a=3), "more was given up than had to go"),
)
def test_a_check_finds_what_is_wrong_with_what_was_given_up(spoil, named):
    """Of 6 tokens of "a" 4 are held, of "b" all 3, of "c" none."""
    ledger = PromptBudgetLedger(3, 4, room=4)
    read(ledger, 6)
    read(ledger, 3, "b")
    ledger.add("c")
    found(ledger, spoil, named)
