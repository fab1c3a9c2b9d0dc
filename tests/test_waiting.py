"""Lines that wait: who is next in each, whoever comes, leaves or comes back."""

import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.request import Request
from kvlib.waiting import FirstComeLine, PriorityLine


@dataclass(eq=False)
class Job:
    order: int
    request: Request


def job(order, priority=0, tenant="", prompt_tokens=1):
    return Job(order, Request(order, None, prompt_tokens, 1, tenant=tenant, priority=priority))


def orders(line):
    return [each.order for each in line]


# What to do next, and to whom: a new request comes, the head begins, one that runs is preempted,
# one that waits gives up.
DEEDS = st.lists(
    st.tuples(st.sampled_from(["push", "push", "pop", "back", "remove"]), st.integers(0, 99)),
    max_size=60,
)


def played(line, deeds):
    """Plays deeds on a line and on a plain list beside it; yields both after each."""
    waiting, running = [], []
    for order, (deed, number) in enumerate(deeds):
        if deed == "push":
            waiting.append(job(order, priority=number % 3))
            line.push(waiting[-1])
        elif deed == "pop" and waiting:
            head = line.head()
            assert line.pop() is head
            running.append(head)
            waiting.remove(head)
        elif deed == "back" and running:
            waiting.insert(0, running.pop(number % len(running)))
            line.push_front(waiting[0])
        elif deed == "remove" and waiting:
            line.remove(waiting.pop(number % len(waiting)))
        line.check()
        yield line, waiting


@given(DEEDS)
def test_first_come_is_a_list_whose_front_is_served(deeds):
    for line, waiting in played(FirstComeLine(), deeds):
        assert list(line) == waiting
        assert len(line) == len(waiting)
        assert line.head() is (waiting[0] if waiting else None)


@given(DEEDS)
def test_priority_sorts_by_priority_and_then_arrival(deeds):
    for line, waiting in played(PriorityLine(), deeds):
        due = sorted(waiting, key=lambda each: (each.request.priority, each.order))
        assert list(line) == due
        assert len(line) == len(due)
        assert line.head() is (due[0] if due else None)


def test_first_come_takes_a_preempted_request_before_all_others():
    line = FirstComeLine()
    line.push(job(0))
    line.push_front(job(7))
    assert orders(line) == [7, 0]


def test_a_preempted_request_keeps_its_priority():
    line = PriorityLine()
    line.push(job(5, priority=1))
    line.push_front(job(0, priority=2))
    line.push_front(job(3, priority=1))
    assert orders(line) == [3, 5, 0]


@pytest.mark.parametrize("leaves", range(12))
def test_the_order_of_priorities_outlives_whoever_gives_up(leaves):
    line = PriorityLine()
    jobs = [job(order, priority=order * 5 % 7) for order in range(12)]
    for each in jobs:
        line.push(each)
    line.remove(jobs.pop(leaves))
    due = sorted(jobs, key=lambda each: (each.request.priority, each.order))
    assert [line.pop() for _ in due] == due


@pytest.mark.parametrize("kind", [FirstComeLine, PriorityLine])
def test_nobody_is_next_in_an_empty_line(kind):
    line = kind()
    assert line.head() is None
    with pytest.raises(IndexError, match="asked for 1 request, 0 wait"):
        line.pop()


@pytest.mark.parametrize("priority", [1.5, "high", None, True])
def test_a_priority_is_a_whole_number(priority):
    line = PriorityLine()
    with pytest.raises(TypeError, match="priority must be a whole number"):
        line.push(job(0, priority=priority))
    assert len(line) == 0
    line.push(job(1, priority=-3))  # and one below 0 is as good as any
    line.push(job(2, priority=-4))
    assert orders(line) == [2, 1]


@pytest.mark.parametrize("kind", [FirstComeLine, PriorityLine])
def test_whoever_stands_in_line_twice_is_found(kind):
    line = kind()
    line.check()
    jobs = [job(order) for order in range(3)]
    for each in jobs:
        line.push(each)
    line.check()
    line.push(jobs[1])
    with pytest.raises(AssertionError, match="one of 4 waits twice"):
        line.check()


@pytest.mark.parametrize("kind", [FirstComeLine, PriorityLine])
def test_a_line_of_another_kind_that_miscounts_is_found(kind):
    class Miscounts(kind):
        def __len__(self):
            return 5

    line = Miscounts()
    line.push(job(0))
    with pytest.raises(AssertionError, match="1 stand in line, 5 are counted"):
        line.check()


# Entries may lie in any order in which nobody stands above whoever it lets by.
@pytest.mark.parametrize(
    ("priorities", "found"),
    [
        ([0, 2, 1], None),
        ([0, 4, 1, 5, 6, 3, 2, 7], None),
        ([1, 0], "(1, 0) stands above (0, 1)"),
        ([1, 2, 0], "(1, 0) stands above (0, 2)"),
        ([0, 3, 1, 2], "(3, 1) stands above (2, 3)"),
        ([0, 1, 4, 2, 3, 5, 3], "(4, 2) stands above (3, 6)"),
    ],
)
def test_a_heap_is_proved_from_each_entry_to_the_one_above_it(priorities, found):
    line = PriorityLine()
    for order, priority in enumerate(priorities):
        line._jobs.append((priority, order, job(order, priority)))
    if found is None:
        line.check()
        return
    with pytest.raises(AssertionError, match=re.escape(found)):
        line.check()


@pytest.mark.parametrize("kind", [FirstComeLine, PriorityLine])
def test_who_does_not_wait_cannot_give_up(kind):
    line = kind()
    line.push(job(1))
    with pytest.raises(ValueError, match="request 1 does not wait here, among 1"):
        line.remove(job(1))
    assert orders(line) == [1]


@pytest.mark.parametrize("kind", [FirstComeLine, PriorityLine])
def test_service_changes_nothing_and_may_be_skipped(kind):
    line = kind()
    line.push(job(0, tenant="a"))
    line.push(job(1, tenant="b"))
    line.served(job(0, tenant="a"), 1000, output=True)
    assert orders(line) == [0, 1]
    assert not kind.counts_service
