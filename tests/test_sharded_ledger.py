"""The ledgers of all ranks in one: a step is taken on every rank or on none."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.sharded_ledger import ShardedLedger
from kvlib.sharding import owner


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
