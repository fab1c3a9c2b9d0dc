"""The contiguous ledger: one owner per row, atomic steps, lengths that move at commit only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kvlib.ledger import ContiguousLedger, grown_len
from kvlib.plan import BlockCopy, OutOfBlocks, SequenceTooLong
from ledger_machine import LedgerMachine


@pytest.fixture
def ledger():
    """Row 0 holds "a" with 2 tokens, row 1 holds "b" with 1; row 2 is free."""
    ledger = ContiguousLedger(num_seqs=3, max_seq_len=4)
    ledger.add("a")
    ledger.add("b")
    ledger.commit(ledger.plan({"a": [1, 2], "b": [3]}))
    return ledger


def state(ledger):
    return ledger.seq_ids, [ledger.length(s) for s in ledger.seq_ids], ledger.num_free


def test_the_plan_names_positions_slots_and_lengths(ledger):
    step = ledger.plan({"b": [4, 5], "a": [6]})
    assert step.positions == (1, 2, 2)
    assert step.slot_mapping == (4 + 1, 4 + 2, 2)
    assert step.query_start == (0, 2, 3)
    assert step.context_lens == (3, 3)
    assert step.block_table == ((1,), (0,))
    assert step.block_size == 4


def test_lengths_move_at_commit_and_not_before(ledger):
    step = ledger.plan({"a": [6]})
    assert ledger.length("a") == 2
    ledger.commit(step)
    assert ledger.length("a") == 3


def test_abort_leaves_no_trace(ledger):
    before = state(ledger)
    ledger.abort(ledger.plan({"a": [6, 7], "b": [8]}))
    assert state(ledger) == before
    assert ledger.plan({"a": [6]}).positions == (2,)


def test_a_plan_closes_once(ledger):
    step = ledger.plan({"a": [6]})
    ledger.commit(step)
    for close in (ledger.commit, ledger.abort, ledger.require_open):
        with pytest.raises(ValueError, match="not open"):
            close(step)
    assert ledger.length("a") == 3


def test_plans_of_different_sequences_are_open_side_by_side(ledger):
    step = ledger.plan({"a": [6]})
    ledger.commit(ledger.plan({"b": [7]}))
    ledger.commit(step)
    assert (ledger.length("a"), ledger.length("b")) == (3, 2)


def test_overflow_of_one_sequence_refuses_the_whole_step(ledger):
    before = state(ledger)
    with pytest.raises(SequenceTooLong, match=r"3 more tokens after 2: 5 > max_seq_len 4"):
        ledger.plan({"b": [1], "a": [1, 2, 3]})
    assert state(ledger) == before
    ledger.commit(ledger.plan({"a": [1, 2], "b": []}))
    assert ledger.length("a") == 4


def test_rows_run_out_with_numbers_and_come_back(ledger):
    assert ledger.can_add() is True
    ledger.add("c")
    assert ledger.can_add() is False
    with pytest.raises(OutOfBlocks, match="asked for 1 row, 0 free of 3"):
        ledger.add("d")
    ledger.free("b")
    ledger.add("d")
    assert (ledger.row("d"), ledger.length("d")) == (1, 0)


@pytest.mark.parametrize("call", ["free", "length", "row", "plan", "truncate", "fork"])
def test_a_sequence_that_is_not_live_is_refused(ledger, call):
    ledger.free("b")
    before = state(ledger)
    arguments = {"plan": ({"a": [1], "b": [1]},), "truncate": ("b", 0), "fork": ("b", "z")}
    with pytest.raises(KeyError, match="no sequence 'b'; 1 are live"):
        getattr(ledger, call)(*arguments.get(call, ("b",)))
    assert state(ledger) == before


def test_a_live_id_cannot_be_added_again(ledger):
    for seq_id in ("a", None):
        with pytest.raises(ValueError, match="new id"):
            ledger.add(seq_id)
    with pytest.raises(ValueError, match="new id"):
        ledger.fork("a", "b")
    assert ledger.num_free == 1


def test_truncate_keeps_the_first_tokens(ledger):
    ledger.truncate("a", 1)
    assert ledger.length("a") == 1
    ledger.truncate("a", 0)
    assert ledger.length("a") == 0
    for keep in (-1, 1):
        with pytest.raises(ValueError, match="keeps 0 to 0"):
            ledger.truncate("a", keep)


def test_fork_copies_the_parents_tokens_into_a_new_row(ledger):
    assert ledger.fork("a", "c") == [BlockCopy(src=0, dst=2, num_tokens=2)]
    assert ledger.length("c") == 2
    before = state(ledger)
    with pytest.raises(OutOfBlocks):
        ledger.fork("a", "d")
    assert state(ledger) == before


def test_reorder_moves_rows_and_copies_only_what_is_continued_twice():
    ledger = ContiguousLedger(num_seqs=3, max_seq_len=2)
    for seq_id in range(3):
        ledger.add(seq_id)
    ledger.commit(ledger.plan({0: [1], 1: [1, 2], 2: [1]}))
    assert ledger.reorder({0: 2, 1: 0, 2: 0}) == [BlockCopy(src=0, dst=1, num_tokens=1)]
    assert [ledger.row(s) for s in range(3)] == [2, 0, 1]
    assert [ledger.length(s) for s in range(3)] == [1, 1, 1]
    ledger.check()


def test_reorder_refuses_a_source_that_is_not_reordered(ledger):
    before = state(ledger)
    with pytest.raises(ValueError, match="not itself reordered"):
        ledger.reorder({"a": "b"})
    with pytest.raises(KeyError):
        ledger.reorder({"a": "a", "z": "a"})
    assert state(ledger) == before


def test_padding_keeps_the_step_and_points_at_the_null_block(ledger):
    step = ledger.plan({"a": [6], "b": [7]})
    padded = step.pad(num_tokens=4, num_seqs=3, null_block_id=9)
    assert padded.slot_mapping == (*step.slot_mapping, 36, 36)
    assert padded.query_start == (0, 1, 2, 2)
    assert padded.context_lens == (3, 2, 0)
    assert padded.block_table == ((0,), (1,), (9,))
    for smaller in ((1, 3), (4, 1)):
        with pytest.raises(ValueError, match="only grows"):
            step.pad(*smaller, null_block_id=9)
    assert step.pad(2, 2, 9) == step
    ledger.commit(padded)
    assert (ledger.length("a"), ledger.length("b")) == (3, 2)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (-1, 4), (2.0, 4), (True, 4)])
def test_sizes_are_positive_integers(sizes):
    with pytest.raises((TypeError, ValueError), match=r"must be a(t least 1| whole number)"):
        ContiguousLedger(*sizes)


@given(st.integers(1, 40), st.integers(1, 1500), st.floats(1.05, 8))
def test_a_token_is_copied_fewer_than_growth_over_growth_minus_one_times(first, limit, growth):
    """At every length, not only in the end, and wherever the rows may grow no further."""
    row_len, copied = first, 0
    for stored in range(1, limit + 1):
        if stored > row_len:
            copied += row_len
            row_len = grown_len(row_len, stored, max(first, limit), growth)
        assert copied < stored * growth / (growth - 1)


def test_a_plan_from_before_a_growth_can_only_be_aborted():
    """Its slots mean other places now; what was planned after the growth goes on."""
    ledger = ContiguousLedger(num_seqs=2, max_seq_len=8, initial_seq_len=2)
    ledger.add("a")
    ledger.add("b")
    old = ledger.plan({"a": [1]})
    new = ledger.plan({"b": [1] * 3})
    assert ledger.row_len == 4 and ledger.open_plan_ids == {old.plan_id, new.plan_id}
    for call in (ledger.commit, ledger.require_open):
        with pytest.raises(ValueError, match="older than the last growth"):
            call(old)
    ledger.check()
    ledger.abort(old)
    ledger.commit(new)
    assert (ledger.length("a"), ledger.length("b")) == (0, 3)
    assert not ledger.open_plan_ids and not ledger._open._outgrown


def test_a_factor_of_any_size_stops_at_the_maximum():
    assert grown_len(4, 5, 9, 1e308) == 9
    assert grown_len(10, 11, 99, 1.0001) == 11


def test_a_step_of_nobody_is_padded_with_one_block_a_sequence(ledger):
    padded = ledger.plan({}).pad(num_tokens=1, num_seqs=2, null_block_id=9)
    assert padded.block_table == ((9,), (9,))
    assert (padded.slot_mapping, padded.query_start) == ((36,), (0, 0, 0))


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0, float("inf"), float("nan")])
def test_a_factor_by_which_nothing_grows_is_refused(factor):
    with pytest.raises(ValueError, match="growth must be a finite factor above 1"):
        ContiguousLedger(1, 4, 2, factor)


def test_rows_start_at_most_as_long_as_they_may_become():
    assert ContiguousLedger(1, 4, 4).row_len == 4
    with pytest.raises(ValueError, match="initial_seq_len 5 > max_seq_len 4"):
        ContiguousLedger(1, 4, 5)
    for sizes, name in (((4, 0), "initial"), ((4, 1.5), "initial"), ((4.5, 1), "max")):
        with pytest.raises((TypeError, ValueError), match=f"{name}_seq_len must be"):
            ContiguousLedger(1, *sizes)


class RowsMachine(LedgerMachine):
    """Four rows of six slots."""

    def __init__(self):
        super().__init__()
        self.begin(ContiguousLedger(num_seqs=4, max_seq_len=6))

    def can_fork(self):
        return len(self.tokens) < 4

    def copied(self, copies):
        assert len({c.dst for c in copies}) == len(copies)
        assert not {c.dst for c in copies} & {c.src for c in copies}

    @rule()
    def add(self):
        seq_id = next(self.ids)
        if len(self.tokens) == 4:
            with pytest.raises(OutOfBlocks):
                self.ledger.add(seq_id)
        else:
            self.ledger.add(seq_id)
            self.tokens[seq_id] = []

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), commit=st.booleans())
    def step(self, data, commit):
        new = {s: [0] * data.draw(st.integers(0, 4)) for s in self.pick_some(data)}
        if any(len(self.tokens[s]) + len(t) > 6 for s, t in new.items()):
            with pytest.raises(SequenceTooLong):
                self.ledger.plan(new)
            return
        plan = self.ledger.plan(new)
        assert len(set(plan.slot_mapping)) == plan.num_tokens
        self.close(plan, new, commit)

    @invariant()
    def every_row_has_one_owner(self):
        assert self.ledger.num_free + len(self.tokens) == 4
        assert self.ledger.used_tokens == sum(map(len, self.tokens.values()))
        assert self.ledger.reserved_tokens == 6 * len(self.tokens)


TestLedgerMachine = RowsMachine.TestCase
