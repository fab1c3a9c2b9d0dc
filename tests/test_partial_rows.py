"""What a ring and two budgets of tokens share: rows that are shorter than their sequences."""

import pytest

from kvlib.budget_ledger import BudgetLedger, PromptBudgetLedger
from kvlib.partial_rows import PartialRowLedger
from kvlib.rolling_ledger import RollingLedger

KINDS = [BudgetLedger, PromptBudgetLedger, RollingLedger]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planned_already_or_not_there_is_refused(kind):
    ledger = kind(2, 4)
    ledger.add("a")
    plan = ledger.plan({"a": [0]})
    for call in (ledger.plan, ledger.row_len_for):
        with pytest.raises(ValueError, match="'a' is in an open plan"):
            call({"a": [0]})
        with pytest.raises(KeyError, match="no sequence 'z'"):
            call({"z": [0]})
    ledger.commit(plan.pad(3, 2, 9))
    assert (ledger.length("a"), ledger.used_tokens, ledger.row_len_for({"a": [0]})) == (1, 1, 4)
    ledger.free("a")
    ledger.check()
    assert (ledger.seq_ids, ledger.num_free) == ((), 2)


@pytest.mark.parametrize("kind", [BudgetLedger, RollingLedger])
def test_a_row_never_grows_and_a_sequence_may(kind):
    ledger = kind(1, 4)
    ledger.add("a")
    assert (ledger.max_seq_len, ledger.row_len_for({"a": [0] * 9})) == (None, 4)
    ledger.commit(ledger.plan({"a": [0] * 9}))
    assert (ledger.length("a"), ledger.used_tokens, ledger.row_len) == (9, 4, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_and_who_continues_it_have_lost_the_same(kind):
    assert issubclass(kind, PartialRowLedger)
    ledger = kind(3, 4)
    for seq_id, num_tokens in (("a", 6), ("b", 1)):
        ledger.add(seq_id)
        ledger.commit(ledger.plan({seq_id: [0] * num_tokens}))
    ledger.fork("a", "c")
    ledger.reorder({"a": "b", "b": "a"})
    assert [ledger.length(seq_id) for seq_id in "abc"] == [1, 6, 6]
    assert ledger.used_tokens == 1 + 4 + 4
    ledger.check()
