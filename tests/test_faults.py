"""A call that fails leaves everything as it was: in an allocation, in a callback, in the middle."""

from math import inf

import pytest

from kvlib.arena import Arena
from kvlib.blocks import BlockPool
from kvlib.content import TokenContent
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.engine_desk import RequestDesk
from kvlib.engine_request import EngineRequest
from kvlib.handover_line import HandoverLine
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.ledger import ContiguousLedger
from kvlib.paged_ledger import PagedLedger
from kvlib.preemption import SwapSpace
from kvlib.priority import PriorityPolicy, Retain
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.scheduled_memory import EngineMemory
from kvlib.scheduler import Scheduler
from kvlib.segments import SegmentPool
from kvlib.served import ServedRequest
from kvlib.sharded_ledger import ShardedLedger
from kvlib.waiting import FirstComeLine, PriorityLine

every_index = pytest.mark.parametrize("index", [HashIndex, RadixTree])


class Fails:
    """A call that fails as often as it is told to."""

    def __init__(self, real, times=0, after=0):
        self.real, self.times, self.after = real, times, after

    def __call__(self, *args, **options):
        if self.after:
            self.after -= 1
        elif self.times:
            self.times -= 1
            raise MemoryError("injected")
        return self.real(*args, **options)


def job(order, tokens, size=1, more=9):
    n = len(tokens)
    content = TokenContent(tokens, size)
    return ServedRequest(Request(order, None, n, more), order, 0, n + more, n + more, content, n)


def computed(memory, each):
    memory.start(each, each.num_tokens)
    each.num_computed = each.num_tokens
    memory.index(each)
    return each


def test_a_listener_that_fails_loses_no_block():
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.mark(block)
    pool.free(blocks)
    pool.on_evict = Fails(lambda block: None, times=1, after=1)
    with pytest.raises(MemoryError):
        pool.allocate(3)
    pool.check()
    assert (pool.num_free, pool.num_kept, pool.num_held) == (3, 1, 0)
    assert sorted(pool.allocate(3)) == [0, 1, 2]


def test_a_block_is_unmarked_even_if_its_listener_fails():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.mark(block)
    pool.free([block])
    pool.on_evict = Fails(lambda block: None, times=1)
    with pytest.raises(MemoryError):
        pool.unmark(block)
    pool.check()
    assert pool.num_kept == 0 and not pool.has_content(block)


@every_index
@pytest.mark.parametrize("place", ["allocate", "clock"])
def test_a_start_that_fails_gives_back_what_it_found(index, place):
    clock = Fails(lambda: 0.0)
    policy = PriorityPolicy(lambda *_: Retain(50, 9.0), clock)
    memory = KVMemory(5, 1, lambda pool: index(pool, policy))
    memory.stop(computed(memory, job(0, [1, 2, 3])))
    memory.stop(computed(memory, job(2, [8, 9])))
    memory.pool.allocate = Fails(memory.pool.allocate)
    {"allocate": memory.pool.allocate, "clock": clock}[place].times = 1
    late = job(1, [1, 2, 3, 4])
    with pytest.raises(MemoryError):
        memory.start(late, 4)
    memory.check()
    assert memory.num_held == 0 and not late.block_ids
    memory.start(late, 4)
    assert late.num_cached == 3
    memory.check()


def test_a_request_that_was_stopped_cannot_grow():
    memory = KVMemory(4, 2)
    each = job(7, [1, 2, 3])
    memory.start(each, 3)
    memory.stop(each)
    with pytest.raises(ValueError, match="request 7 does not run"):
        memory.grow(each, 4)
    memory.check()
    assert memory.num_free == memory.size


@every_index
def test_a_policy_that_refuses_a_block_leaves_the_index_as_it_was(index):
    asked = []

    def retain(content, i):
        asked.append(i)
        return Retain(101 if len(asked) == 2 or (index is RadixTree and len(asked) < 2) else 50)

    pool = BlockPool(6)
    made = index(pool, PriorityPolicy(retain, lambda: 0.0))
    content, blocks = TokenContent([1, 2, 3], 1), pool.allocate(3)
    with pytest.raises(ValueError, match="priorities are 0 to 100, got 101"):
        made.insert(content, blocks)
    made.check()
    assert len(made) == 0 and not any(map(pool.has_content, blocks))
    asked.extend([0, 0])
    assert made.insert(content, blocks) == 3
    made.check()


def test_a_tree_whose_policy_refuses_holds_no_second_copy():
    refuse = []
    pool = BlockPool(8)
    tree = RadixTree(pool, PriorityPolicy(lambda *_: Retain(*refuse), lambda: 0.0))
    tree.insert(TokenContent([1, 2], 1), pool.allocate(2))
    refuse.append(-1)
    with pytest.raises(ValueError, match="got -1"):
        tree.insert(TokenContent([1, 2, 3], 1), pool.allocate(3))
    tree.check()
    assert tree.held == () and sorted(map(pool.ref_count, range(8))) == [0, 0, 0, 1, 1, 1, 1, 1]


@every_index
def test_whatever_a_clock_does_idle_blocks_can_be_given_up(index):
    clock = Fails(lambda: 0.0)
    memory = KVMemory(3, 1, lambda p: index(p, PriorityPolicy(lambda *_: Retain(9, 9.0), clock)))
    each = computed(memory, job(0, [1, 2, 3]))
    clock.times = 1
    with pytest.raises(MemoryError):
        memory.stop(each)
    memory.check()
    assert not each.block_ids and memory.num_free == 3
    memory.prefixes.make_room(3)
    assert memory.num_kept == 0


def test_the_upper_half_of_a_node_keeps_its_priority_no_longer_than_the_lower():
    now = [0.0]
    policy = PriorityPolicy(lambda _, i: Retain(80, 60.0), lambda: now[0])
    memory = KVMemory(9, 1, lambda pool: RadixTree(pool, policy))
    memory.stop(computed(memory, job(0, [1, 2, 3])))
    fork = job(1, [1, 7])
    memory.start(fork, 2)
    fork.num_computed = 2
    memory.index(fork)
    memory.check()
    now[0] = 61.0
    policy.lowest()
    assert {use.priority for use in policy._uses.values() if use.uses} == {35}
    memory.check()


def test_a_priority_that_lasts_is_remembered_once_however_often_it_is_used():
    policy = PriorityPolicy(lambda *_: Retain(80, 1e9), lambda: 0.0)
    for key in "ab":
        policy.add(key)
    for _ in range(1000):
        policy.use("a")
        policy.use("b")
    assert len(policy._ends) < 100
    policy.check()


def of_two(make):
    ledger = make()
    for seq_id in "ab":
        ledger.add(seq_id)
    ledger.commit(ledger.plan({"a": [1, 2, 3], "b": [4]}))
    return ledger


@pytest.mark.parametrize("place", ["allocate", "_slots"])
def test_a_plan_that_fails_for_its_second_sequence_takes_nothing_for_the_first(place):
    ledger = of_two(lambda: PagedLedger(8, 2))
    ledger.fork("a", "c")
    owner = ledger.pool if place == "allocate" else ledger
    before = ledger.num_free, ledger.table("a"), ledger.table("b")
    setattr(owner, place, Fails(getattr(owner, place), times=1, after=1))
    with pytest.raises(MemoryError):
        ledger.plan({"a": [5, 6], "b": [7, 8]})
    ledger.check()
    assert (ledger.num_free, ledger.table("a"), ledger.table("b")) == before
    ledger.commit(ledger.plan({"a": [5, 6], "b": [7, 8]}))
    ledger.check()


def test_a_reorder_that_fails_shares_nothing():
    ledger = of_two(lambda: PagedLedger(8, 2))
    ledger.pool.share = Fails(ledger.pool.share, times=1, after=1)
    with pytest.raises(MemoryError):
        ledger.reorder({"a": "b", "b": "a"})
    ledger.check()
    ledger.reorder({"a": "b", "b": "a"})
    assert ledger.length("a") == 1
    ledger.check()


def test_a_fork_on_ranks_is_on_all_or_on_none():
    ledger = of_two(lambda: ShardedLedger(8, 2, 2))
    pool = ledger.ledgers[1].pool
    pool.share = Fails(pool.share, times=1)
    with pytest.raises(MemoryError):
        ledger.fork("a", "c")
    ledger.check()
    assert ledger.seq_ids == ("a", "b")


@pytest.mark.parametrize(
    "make",
    [lambda: ContiguousLedger(2, 8), lambda: PagedLedger(8, 2), lambda: ShardedLedger(8, 2, 2)],
)
@pytest.mark.parametrize("close", ["commit", "abort"])
def test_a_plan_is_closed_once_and_by_its_own_ledger(make, close):
    ledger, other = of_two(make), of_two(make)
    empty = ledger.plan({})
    getattr(ledger, close)(empty)
    with pytest.raises(ValueError, match="committed or aborted before"):
        getattr(ledger, close)(empty)
    other.abort(other.plan({}))
    mine, theirs = ledger.plan({"a": [9]}), other.plan({"a": [9, 9]})
    assert mine.plan_id == theirs.plan_id
    with pytest.raises(ValueError, match="another ledger's"):
        getattr(ledger, close)(theirs)
    ledger.commit(mine)
    assert ledger.length("a") == 4
    ledger.check()


@pytest.mark.parametrize("number", [-1, 1.5, True])
def test_a_swap_space_takes_and_gives_whole_tokens(number):
    space = SwapSpace(9)
    space.take(4)
    for call in (space.take, space.give):
        with pytest.raises((TypeError, ValueError), match="num_tokens"):
            call(number)
    assert space.num_free == 5


def test_a_priority_of_another_kind_leaves_the_line_as_it_was():
    scheduler = Scheduler(KVMemory(8, 4), waiting=PriorityLine())
    for i, priority in enumerate((3, 1, 2)):
        scheduler.add(Request(i, None, 2, 1, priority=priority))
    with pytest.raises(TypeError, match="priority must be a whole number"):
        scheduler.add(Request(9, None, 2, 1, priority="high"))
    scheduler.check()
    assert [each.order for each in scheduler.waiting] == [1, 2, 0]


def test_a_report_that_fails_in_the_index_loses_nobody():
    scheduler = Scheduler(KVMemory(12, 2, HashIndex))
    short = Request(0, None, 3, 1)
    jobs = [scheduler.add(short, content=TokenContent([1, 2, 3], 2))]
    for i in (1, 2):
        content = TokenContent([*range(10 * i, 10 * i + 9)], 2)
        jobs.append(scheduler.add(Request(i, None, 4, 3), content=content))
    scheduler.memory.index = Fails(scheduler.memory.index, times=1, after=1)
    with pytest.raises(MemoryError):
        scheduler.report(scheduler.schedule(), 5.0)
    scheduler.check()
    assert jobs[0].finished_s == 5.0 and [*scheduler.running] == jobs[1:]
    assert [each.num_computed for each in jobs[1:]] == [4, 0]
    while scheduler.has_work:
        scheduler.report(scheduler.schedule())
    assert [each.num_outputs for each in jobs] == [1, 3, 3]


def test_all_that_end_in_a_step_leave_even_if_a_policy_fails():
    scheduler = Scheduler(KVMemory(12, 2))
    jobs = [scheduler.add(Request(i, None, 3, 1)) for i in range(3)]
    real = scheduler.memory.stop

    def told(each):
        real(each)
        if each is jobs[0]:
            raise MemoryError

    scheduler.memory.stop = told
    with pytest.raises(MemoryError):
        scheduler.report(scheduler.schedule(), 1.0)
    scheduler.check()
    assert not scheduler.has_work and scheduler.memory.num_held == 0


def crowded():
    """Two requests that fill the memory and must grow."""
    scheduler = Scheduler(KVMemory(4, 1))
    jobs = [scheduler.add(Request(i, None, 2, 2)) for i in range(2)]
    scheduler.report(scheduler.schedule())
    return scheduler, jobs


def test_who_loses_its_memory_while_a_policy_fails_waits():
    scheduler, jobs = crowded()
    real = scheduler.memory.stop
    scheduler.memory.stop = lambda each: (real(each), Fails(None, 1)())
    with pytest.raises(MemoryError):
        scheduler.schedule()
    scheduler.memory.stop = real
    scheduler.check()
    assert [*scheduler.waiting] == jobs[1:]


def test_a_rule_can_only_choose_a_victim_that_runs():
    scheduler, jobs = crowded()
    stranger = job(9, [1])
    scheduler.victim, scheduler.running.swap = (lambda running: stranger), SwapSpace(99)
    with pytest.raises(ValueError, match="a victim is one of the 2 that run"):
        scheduler.schedule()
    scheduler.check()
    assert [*scheduler.running] == jobs and not stranger.num_preempted


def test_only_who_waits_can_fork_and_only_from_whole_tokens():
    memory = EngineMemory(8, 2)
    parent, child = job(0, [1, 2, 3], 2), job(1, [1, 2, 3, 4], 2)
    for each in (parent, child):
        memory.start(each, each.num_tokens)
    with pytest.raises(ValueError, match="request 1 runs"):
        memory.fork(parent, child, 3)
    for bad in (-1, 1.0):
        with pytest.raises((TypeError, ValueError), match="num_tokens"):
            memory.fork(parent, job(2, [1, 2, 3, 4], 2), bad)
    memory.check()


def test_a_request_ends_only_if_the_clock_says_when():
    clock = Fails(lambda: 3.0)
    plain = dict(max_seq_len=None, prefix_caching=True, swap_tokens=0, max_waiting=4)
    desk = RequestDesk(8, 2, 16, clock=clock, **plain)
    request = EngineRequest(desk, [1, 2], 3, None, frozenset(), 0.0, None)
    desk.take([request])
    clock.times = 1
    with pytest.raises(MemoryError):
        request.cancel()
    desk.check()
    assert not request.done
    request.cancel()
    assert request.done and request.finished_s == 3.0 and not desk.live


def test_a_line_names_whom_it_did_not_expect_and_tells_nothing_of_the_prompt():
    line, each = HandoverLine(), job(4, [61234, 61235])
    with pytest.raises(KeyError, match="request 4 is not expected") as told:
        line.ready(each)
    assert "6123" not in str(told.value)


def spoilt_line():
    line = FirstComeLine()
    each = job(0, [1])
    line.push(each)
    line.push(each)
    return line


def spoilt_heap():
    line = PriorityLine()
    for order in range(3):
        line.push(job(order, [1]))
    line._jobs.reverse()
    return line


def spoilt_pieces():
    memory = ContiguousMemory(Arena(9))
    memory.allocator.allocate(2)
    return memory


def spoilt_space():
    space = SwapSpace(4)
    space.num_free = 5
    return space


def spoilt_segments():
    pool = SegmentPool()
    pool.allocate(9)
    pool._segments.update({True: [], False: pool._segments[True]})
    return pool


def spoilt_plans():
    ledger = ContiguousLedger(1, 4)
    ledger.add("a")
    ledger.plan({"a": [1]})
    ledger._open._listed.clear()
    return ledger


def spoilt_table():
    ledger = PagedLedger(4, 2)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": [1, 2, 3]}))
    ledger._tables["a"]._blocks[1] = 0
    return ledger._tables["a"]


def spoilt_ends():
    policy = PriorityPolicy(lambda *_: Retain(80, 9.0), lambda: 0.0)
    policy.add("a")
    policy.use("a")
    policy._ends.clear()
    return policy


SPOILT = {
    spoilt_line: "one of 2 waits twice",
    spoilt_heap: "stands above",
    spoilt_pieces: "0 requests hold",
    spoilt_space: "5 tokens free of 4",
    spoilt_segments: "in a wrong segment",
    spoilt_plans: "plans that are not open",
    spoilt_table: "a block stands twice",
    spoilt_ends: "1 priorities would never end",
}


@pytest.mark.parametrize("make", SPOILT, ids=lambda make: make.__name__)
def test_a_check_names_what_is_broken(make):
    with pytest.raises(AssertionError, match=SPOILT[make]):
        make().check()


def test_priorities_without_an_end_need_none():
    policy = PriorityPolicy(lambda *_: Retain(80, inf), lambda: 0.0)
    policy.add("a")
    policy.use("a")
    policy.check()
    assert not policy._ends
