"""Memory held on both sides of a link, and who may begin at the receiver."""

import pytest

from kvlib.handover import Link, ReceivingMemory, SendingMemory
from kvlib.kv_memory import KVMemory
from kvlib.request import Request
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest


def job(order=0, prompt_tokens=3):
    request = Request(order, None, prompt_tokens, 2)
    return ServedRequest(request, order, 0.0, 9, 9, num_tokens=prompt_tokens)


@pytest.mark.parametrize(
    ("link", "num_bytes", "seconds"),
    [
        (Link(1), 0, 0.0),
        (Link(2), 10**9, 0.5),
        (Link(0.5, 0.25), 10**9, 2.25),
        (Link(4, 3), 8 * 10**9, 5.0),
        (Link(float("inf"), 0.25), 10**9, 0.25),
    ],
)
def test_a_transfer_takes_its_latency_and_its_bytes(link, num_bytes, seconds):
    assert link.seconds(num_bytes) == seconds


def test_a_link_is_what_it_says_and_can_be_a_key():
    assert {Link(2): "a", Link(2.0, 0): "b", Link(2, 1): "c"} == {Link(2): "b", Link(2, 1): "c"}


def test_a_sender_keeps_what_has_ended_until_it_was_sent_and_nothing_else():
    memory, jobs = SendingMemory(9, 1), [job(i) for i in range(3)]
    for each in jobs:
        memory.start(each, 3)
    assert memory.ended == () and memory.num_free == 0
    jobs[1].finished_s = 1.0
    for each in jobs[:2]:
        memory.stop(each)
    assert memory.ended == (jobs[1],) and memory.num_free == 3  # the first was preempted
    memory.sent(jobs[1])
    assert memory.ended == () and memory.num_free == 6
    memory.check()


@pytest.mark.parametrize("call", ["stop", "sent"])
def test_a_sender_gives_nothing_back_twice(call):
    memory, one = SendingMemory(4, 1), job()
    memory.start(one, 3)
    one.finished_s = 1.0
    memory.sent(one)
    with pytest.raises(ValueError, match="request 0 does not run"):
        getattr(memory, call)(one)
    assert memory.num_free == 4


def test_a_receiver_knows_what_has_arrived_and_what_it_costs_to_start():
    memory, one, other = ReceivingMemory(4, 2), job(0), job(1)
    assert [memory.cost(one, n) for n in (3, 5)] == [4, 6]
    memory.reserve(one, 3)
    assert memory.coming == (one,) and memory.num_free == 4
    assert [memory.cost(one, n) for n in (1, 4, 5)] == [0, 0, 2]
    assert [memory.cost(other, n) for n in (1, 4, 5)] == [2, 4, 6]
    assert memory.cached_tokens(one) == memory.cached_tokens(other) == 0
    memory.arrived(one)
    assert (memory.cached_tokens(one), memory.cached_tokens(other)) == (2, 0)
    memory.start(other, 3)
    assert (other.num_computed, memory.coming, memory.num_free) == (0, (one,), 0)
    memory.start(one, 3)
    assert (one.num_cached, one.num_computed, memory.coming) == (2, 2, ())
    assert memory.cached_tokens(one) == 0
    memory.check()


def test_a_place_that_is_cancelled_can_be_reserved_again():
    memory, one = ReceivingMemory(3, 1), job()
    memory.reserve(one, 3)
    with pytest.raises(ValueError, match="runs already"):
        memory.reserve(one, 3)
    memory.stop(one)
    assert (memory.coming, memory.num_free) == ((), 3)
    with pytest.raises(KeyError, match="request 0 has no place reserved here"):
        memory.arrived(one)
    memory.reserve(one, 3)
    memory.start(one, 3)
    with pytest.raises(KeyError, match="request 0 has no place reserved here"):
        memory.arrived(one)
    memory.stop(one)
    with pytest.raises(ValueError, match="request 0 does not run"):
        memory.stop(one)
    assert memory.num_free == 3


def test_who_is_dropped_while_it_waits_for_its_tokens_leaves_no_place_behind():
    memory = ReceivingMemory(4, 2)
    served = Scheduler(memory)
    for arrived in (False, True):
        one = served.add(Request(0, None, 6, 2))
        memory.reserve(one, 6)
        if arrived:
            memory.arrived(one)
        served.drop(one)
        served.check()
        memory.check()
        assert (memory.coming, memory.num_free, served.has_work) == ((), 8, False)


def test_the_check_wants_room_for_all_that_arrived():
    """Two of three tokens come, so a place of two is enough, and one of one is not."""
    memory, exact, small = ReceivingMemory(3, 1), job(0), job(1)
    memory.reserve(exact, 2)
    memory.check()
    memory.arrived(exact)
    memory.check()
    memory.reserve(small, 1)
    memory.arrived(small)
    with pytest.raises(AssertionError, match="2 tokens of 1 arrived, it has room for 1"):
        memory.check()


def test_the_check_wants_all_tokens_or_none_and_a_place_with_blocks():
    memory, one = ReceivingMemory(9, 1), job()
    memory.reserve(one, 5)
    memory.arrived(one)
    for num_tokens, ok in ((2, False), (3, True), (4, False)):
        one.num_tokens = num_tokens
        if ok:
            memory.check()
        else:
            with pytest.raises(AssertionError, match=r"2 tokens of 0 arrived, [13] are due"):
                memory.check()
    one.num_tokens = 3
    one.room = 9  # of the five that it has
    with pytest.raises(AssertionError, match="room of 0"):
        memory.check()
    KVMemory.stop(memory, one)  # its blocks go, its place stays
    with pytest.raises(AssertionError, match="0 has a place and no blocks"):
        memory.check()
