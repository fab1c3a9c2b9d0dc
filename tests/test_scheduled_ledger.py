"""Plans in blocks that somebody else has given: the plans of a paged ledger, and nothing taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.kv_memory import KVMemory
from kvlib.paged_ledger import PagedLedger
from kvlib.request import Request
from kvlib.scheduled_ledger import ScheduledLedger
from kvlib.served import ServedRequest
from test_checks import found, table


def started(memory, num_tokens, order=0):
    job = ServedRequest(Request(order, None, 99, 1), order, 0.0, 100, 100, num_tokens=99)
    memory.start(job, num_tokens)
    return job


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_a_plan_is_that_of_a_paged_ledger(spans, size):
    memory, paged = KVMemory(80, size), PagedLedger(80, size)
    jobs = []
    for order, (first, _) in enumerate(spans):
        paged.add(order)
        paged.commit(paged.plan({order: [0] * first}))
        jobs.append(started(memory, first, order))
        jobs[-1].num_computed = first
    for job, (first, new) in zip(jobs, spans, strict=True):
        memory.grow(job, first + new)
    wanted = paged.plan({order: [0] * new for order, (_, new) in enumerate(spans)})
    ledger = ScheduledLedger(memory)
    got = ledger.plan({job: [0] * new for job, (_, new) in zip(jobs, spans, strict=True)})
    same = ("positions", "slot_mapping", "query_start", "context_lens", "block_table")
    assert got.seq_ids == tuple(jobs)
    assert all(getattr(got, name) == getattr(wanted, name) for name in same)
    ledger.commit(got)
    ledger.check()
    assert [ledger.length(job) for job in jobs] == [first for first, _ in spans]


def test_room_that_was_not_given_is_refused():
    memory = KVMemory(4, 4)
    ledger, job = ScheduledLedger(memory), started(memory, 6)
    job.num_computed = 6
    with pytest.raises(ValueError, match="room for 8 tokens, asked for 3 after 6"):
        ledger.plan({job: [1, 2, 3]})
    ledger.commit(ledger.plan({job: [1, 2]}))
    ledger.check()


def test_a_request_is_in_one_plan_and_a_plan_is_closed_once():
    memory = KVMemory(4, 4)
    ledger, job = ScheduledLedger(memory), started(memory, 6)
    assert (ledger.window, ledger.block_size) == (None, 4)
    plan = ledger.plan({job: [1]})
    ledger.require_open(plan)
    assert ledger.open_plan_ids == {plan.plan_id}
    with pytest.raises(ValueError, match="open plan"):
        ledger.plan({job: [1]})
    with pytest.raises(AssertionError, match="left open"):
        ledger.check()
    ledger.abort(plan)
    for late in (ledger.commit, ledger.abort, ledger.require_open):
        with pytest.raises(ValueError, match="not open"):
            late(plan)
    assert ledger.open_plan_ids == set()
    assert (ledger.num_free, ledger.max_seq_len, ledger.pool) == (2, 16, memory.pool)


@table(
    memory=(lambda g: g.pool._empty.popitem(), "a block is lost"),
    plan_lost=(lambda g: g._open._by_sequence.update(z=7), "sequences in plans that are not open"),
    left_open=(lambda g: g._open.open(["z"]), "1 requests are in a plan left open"),
)
def test_a_check_finds_what_is_wrong(spoil, named):
    memory = KVMemory(4, 4)
    started(memory, 6)
    found(ScheduledLedger(memory), spoil, named)
