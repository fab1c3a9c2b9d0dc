"""The ledgers of all ranks in one: a step is taken on every rank or on none."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.sharded_ledger import ShardedLedger
from kvlib.sharding import owner
from test_checks import found, table


def test_a_sequence_goes_round_the_ranks():
    ledger = ShardedLedger(num_blocks=4, block_size=2, num_ranks=3)
    ledger.add("a")
    step = ledger.plan({"a": range(9)})
    assert [part.slot_mapping for part in ledger.parts(step)] == [(0, 1, 2, 3), (0, 1, 2), (0, 1)]
    assert step.slot_mapping == (0, 1, 0, 1, 0, 1, 2, 3, 2)
    assert step.block_table == ((0, 0, 0, 1, 1),)
    assert step.positions == tuple(range(9)) and step.context_lens == (9,)
    ledger.commit(step)
    assert ledger.length("a") == 9 and ledger.max_seq_len == 24
    ledger.check()


def test_a_step_of_two_sequences_by_hand():
    """Blocks of 4 on three ranks: "a" has one on rank 0 and one on rank 1, "b" one on rank 0."""
    ledger = ShardedLedger(num_blocks=2, block_size=4, num_ranks=3)
    ledger.add("b")
    ledger.add("a")
    assert (ledger.num_ranks, ledger.seq_ids, ledger.can_add()) == (3, ("b", "a"), True)
    assert (ledger.max_seq_len, ledger.num_free, ledger.block_size) == (24, 2, 4)
    assert [ledger.held(9, rank) for rank in range(3)] == [4, 4, 1]
    step = ledger.plan({"a": range(5), "b": [1]})
    assert (step.seq_ids, step.positions) == (("a", "b"), (0, 1, 2, 3, 4, 0))
    assert step.slot_mapping == (0, 1, 2, 3, 0, 4)
    assert (step.query_start, step.context_lens, step.block_size) == ((0, 5, 6), (5, 1), 4)
    assert step.block_table == ((0, 0), (1, 2))  # block 2 is the null block
    assert ledger.open_plan_ids == {step.plan_id}
    assert [each.num_free for each in ledger.ledgers] == [0, 1, 2] and ledger.num_free == 0
    ledger.require_open(step)
    ledger.abort(step)
    assert ledger.open_plan_ids == frozenset() and ledger.num_free == 2
    ledger.commit(ledger.plan({"a": range(9)}))
    assert ledger.open_plan_ids == frozenset()
    assert [each.length("a") for each in ledger.ledgers] == [4, 4, 1]
    ledger.truncate("a", 5)
    assert [each.length("a") for each in ledger.ledgers] == [4, 1, 0]
    ledger.commit(ledger.plan({}))
    ledger.check()


def test_a_single_rank_has_all_of_a_text():
    ledger = ShardedLedger(num_blocks=3, block_size=2, num_ranks=1)
    ledger.add("a")
    step = ledger.plan({"a": range(5)})
    assert (step.block_table, step.slot_mapping) == (((0, 1, 2),), (0, 1, 2, 3, 4))


def test_what_one_rank_refuses_no_rank_has():
    ledger = ShardedLedger(num_blocks=2, block_size=2, num_ranks=2)
    ledger.ledgers[1].add("z")
    with pytest.raises(ValueError, match="a new id"):
        ledger.add("z")
    assert ledger.ledgers[0].seq_ids == ()


def test_a_plan_that_fails_on_the_last_rank_is_taken_back_on_the_first(monkeypatch):
    ledger = ShardedLedger(num_blocks=2, block_size=2, num_ranks=2)
    ledger.add("a")

    def fails(new):
        raise MemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(ledger.ledgers[1], "plan", fails)
        with pytest.raises(MemoryError):
            ledger.plan({"a": [1]})
    assert ledger.ledgers[0].open_plan_ids == frozenset() and ledger.num_free == 2
    ledger.commit(ledger.plan({"a": [1]}))
    ledger.check()


def test_a_sequence_that_is_not_there_is_refused_and_changes_nothing():
    ledger = ShardedLedger(num_blocks=2, block_size=2, num_ranks=2)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": [1, 2, 3]}))
    for call in (
        lambda: ledger.plan({"a": [1], "z": [1]}),
        lambda: ledger.fork("z", "b"),
        lambda: ledger.reorder({"a": "a", "z": "a"}),
        lambda: ledger.reorder_copies({"a": "a", "z": "a"}),
        lambda: ledger.truncate("z", 0),
        lambda: ledger.free("z"),
    ):
        with pytest.raises(KeyError, match="no sequence 'z'"):
            call()
    for call in (lambda: ledger.add("a"), lambda: ledger.fork("a", "a")):
        with pytest.raises(ValueError, match="a new id"):
            call()
    assert ledger.fork("a", "b") == ledger.reorder({"a": "b", "b": "b"}) == []
    assert ledger.reorder_copies({"a": "b", "b": "b"}) == []
    assert (ledger.seq_ids, ledger.length("b")) == (("a", "b"), 3)
    ledger.check()


@pytest.mark.parametrize("sizes", [(0, 2, 2), (2, 0, 2), (2, 2, 0), (2, 2, 1.0)])
def test_sizes_are_whole_numbers_of_at_least_one(sizes):
    with pytest.raises((TypeError, ValueError), match="must be"):
        ShardedLedger(*sizes)


def test_one_full_rank_refuses_for_all():
    ledger = ShardedLedger(num_blocks=1, block_size=2, num_ranks=2)
    ledger.add("a")
    ledger.add("b")
    ledger.commit(ledger.plan({"a": [1]}))
    with pytest.raises(OutOfBlocks, match=r"rank 0: asked for 1 blocks of 2, 0 free of 1"):
        ledger.plan({"b": [1]})
    with pytest.raises(SequenceTooLong, match="rank 0"):
        ledger.plan({"a": range(4)})
    ledger.check()
    assert ledger.ledgers[1].num_free == 1
    ledger.commit(ledger.plan({"a": [1, 2]}))
    assert ledger.num_free == 0


def test_a_rank_that_refuses_late_takes_back_what_the_first_took():
    """Rank 0 has a block for "c"; rank 1 would need one more, to copy what "a" and "b" share."""
    ledger = ShardedLedger(num_blocks=2, block_size=2, num_ranks=2)
    for name in "ac":
        ledger.add(name)
    ledger.commit(ledger.plan({"a": range(3)}))
    ledger.fork("a", "b")
    with pytest.raises(OutOfBlocks, match="rank 1: asked for 2 blocks of 2, 1 free of 2"):
        ledger.plan({"a": [1], "c": range(3)})
    assert [each.num_free for each in ledger.ledgers] == [1, 1]
    ledger.commit(ledger.plan({"a": [1]}))
    ledger.check()


def test_a_closed_plan_is_refused():
    ledger = ShardedLedger(num_blocks=2, block_size=2, num_ranks=2)
    ledger.add("a")
    step = ledger.plan({"a": [1]})
    ledger.abort(step)
    for call in (ledger.commit, ledger.abort, ledger.parts):
        with pytest.raises(ValueError, match="not open"):
            call(step)


@pytest.mark.parametrize("keep", [-1, 4])
def test_truncate_keeps_what_is_there(keep):
    ledger = ShardedLedger(num_blocks=2, block_size=2, num_ranks=2)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": [1, 2, 3]}))
    with pytest.raises(ValueError, match=str(keep)):
        ledger.truncate("a", keep)
    with pytest.raises(TypeError):
        ledger.truncate("a", 1.0)
    assert ledger.length("a") == 3


def one_more_on_the_first_rank(ledger):
    first = ledger.ledgers[0]
    first.commit(first.plan({"b": [0]}))


@table(
    no_parts=(lambda g: g._parts.clear(), "a plan without its parts"),
    closed=(lambda g: g._open._by_sequence.clear() or g._open._listed.clear(), "without its parts"),
    plan_lost=(lambda g: g._open._listed.clear(), "sequences in plans that are not open"),
    pool=(lambda g: g.ledgers[1].pool._empty.popitem(), "a block is lost"),
    stranger=(lambda g: g.ledgers[1].add("z"), "rank 1 has other sequences"),
    uneven=(one_more_on_the_first_rank, "rank 0 has 3 of 'b', should have 2"),
)
def test_a_check_finds_what_is_wrong_on_some_rank(spoil, named):
    """Three tokens of "b" are committed, one of "a" is planned."""
    ledger = ShardedLedger(num_blocks=4, block_size=2, num_ranks=2)
    for name in "ab":
        ledger.add(name)
    ledger.commit(ledger.plan({"b": [1, 2, 3]}))
    ledger.plan({"a": [1]})
    found(ledger, spoil, named)


class Machine(RuleBasedStateMachine):
    """Against a dictionary of lengths; every step's slots must be its owners' and nobody else's."""

    def __init__(self):
        super().__init__()
        self.ledger = ShardedLedger(num_blocks=6, block_size=2, num_ranks=3)
        self.lengths = {}
        self.open = {}
        self.names = 0

    def settled(self):
        return sorted(set(self.lengths) - {s for step in self.open.values() for s in step.seq_ids})

    @rule()
    def add(self):
        self.names += 1
        self.ledger.add(self.names)
        self.lengths[self.names] = 0

    @precondition(lambda self: self.settled())
    @rule(data=st.data(), sizes=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def plan(self, data, sizes):
        names = data.draw(st.permutations(self.settled()))
        new = {name: range(size) for name, size in zip(names, sizes, strict=False)}
        free = [each.num_free for each in self.ledger.ledgers]
        try:
            step = self.ledger.plan(new)
        except (OutOfBlocks, SequenceTooLong):
            assert [each.num_free for each in self.ledger.ledgers] == free
            return
        self.open[step.plan_id] = step
        for s, name in enumerate(new):
            start = self.lengths[name]
            rows = range(step.query_start[s], step.query_start[s + 1])
            assert [step.positions[t] for t in rows] == list(range(start, start + len(new[name])))
            for t in rows:
                block = step.block_table[s][step.positions[t] // 2]
                assert step.slot_mapping[t] == block * 2 + step.positions[t] % 2
        for rank, part in enumerate(self.ledger.parts(step)):
            mine = [t for t, p in enumerate(step.positions) if owner(p, 3, 2) == rank]
            assert part.slot_mapping == tuple(step.slot_mapping[t] for t in mine)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), keep=st.booleans())
    def close(self, data, keep):
        step = self.open.pop(data.draw(st.sampled_from(sorted(self.open))))
        if not keep:
            return self.ledger.abort(step)
        self.ledger.commit(step)
        self.lengths.update(zip(step.seq_ids, step.context_lens, strict=True))

    @precondition(lambda self: self.settled())
    @rule(data=st.data())
    def fork(self, data):
        self.names += 1
        parent = data.draw(st.sampled_from(self.settled()))
        self.ledger.fork(parent, self.names)
        self.lengths[self.names] = self.lengths[parent]

    @precondition(lambda self: len(self.settled()) > 1)
    @rule()
    def reorder(self):
        a, b = self.settled()[:2]
        self.ledger.reorder({a: b, b: b})
        self.lengths[a] = self.lengths[b]

    @precondition(lambda self: self.settled())
    @rule(data=st.data())
    def truncate_or_free(self, data):
        name = data.draw(st.sampled_from(self.settled()))
        keep = data.draw(st.none() | st.integers(0, self.lengths[name]))
        if keep is None:
            self.ledger.free(name)
            del self.lengths[name]
        else:
            self.ledger.truncate(name, keep)
            self.lengths[name] = keep

    @invariant()
    def sound(self):
        self.ledger.check()
        assert {s: self.ledger.length(s) for s in self.ledger.seq_ids} == self.lengths


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
