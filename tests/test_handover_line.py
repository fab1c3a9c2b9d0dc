"""A line that holds requests back until their tokens have arrived."""

import pytest

from kvlib.handover_line import HandoverLine
from kvlib.request import Request
from kvlib.served import ServedRequest


def job(order=0, prompt_tokens=3):
    request = Request(order, None, prompt_tokens, 2)
    return ServedRequest(request, order, 0.0, 9, 9, num_tokens=prompt_tokens)


def line_of_four():
    """A line with one ready, two to be computed here and one expected, in that order."""
    line, jobs = HandoverLine(), [job(i) for i in range(4)]
    for each in (jobs[1], jobs[0], jobs[3], jobs[2]):
        line.push(each)
    line.expect(jobs[0])
    line.expect(jobs[3])
    line.ready(jobs[0])
    return line, jobs


@pytest.mark.parametrize(("leaves", "to_compute"), [(0, 2), (1, 1), (2, 1), (3, 2)])
def test_who_gives_up_leaves_the_line_wherever_it_stands(leaves, to_compute):
    line, jobs = line_of_four()
    assert list(line) == jobs and (len(line), line.num_to_compute) == (4, 2)
    line.remove(jobs[leaves])
    rest = [each for each in jobs if each is not jobs[leaves]]
    assert list(line) == rest and (len(line), line.num_to_compute) == (3, to_compute)
    assert line.head() is rest[0]
    line.check()
    with pytest.raises(ValueError, match=f"request {leaves} does not wait here, among 3 that do"):
        line.remove(jobs[leaves])
    assert list(line) == rest


def test_those_that_are_ready_keep_their_order_and_come_before_the_preempted():
    line, jobs = HandoverLine(), [job(i) for i in range(3)]
    for each in jobs:
        line.push(each)
        line.expect(each)
    assert line.head() is None and line.num_to_compute == 0
    line.ready(jobs[2])
    line.ready(jobs[0])
    preempted = job(3)
    line.push_front(preempted)
    assert [line.pop() for _ in range(3)] == [jobs[2], jobs[0], preempted]
    assert line.head() is None and list(line) == [jobs[1]]


def test_a_line_refuses_who_does_not_wait_where_it_is_said_to():
    line, jobs = line_of_four()
    for each in (jobs[0], jobs[3], job(9)):
        with pytest.raises(ValueError, match="does not wait to be computed here"):
            line.expect(each)
    for each in jobs[:3]:
        with pytest.raises(KeyError, match=f"{each.order} is not expected, among 1"):
            line.ready(each)
    assert list(line) == jobs
