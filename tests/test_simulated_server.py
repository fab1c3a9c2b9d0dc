"""Virtual time and the server that runs in it, step by step."""

from math import inf, nan

import pytest

from kvlib.kv_memory import KVMemory
from kvlib.load_test import Progress
from kvlib.request import Request
from kvlib.scheduled_step import Step
from kvlib.scheduler import Scheduler
from kvlib.simulated_server import SimulatedServer, VirtualTime


class Seconds:
    """A step takes two seconds, and one more for each of its tokens."""

    def seconds(self, step):
        return 2.0 + step.num_tokens


@pytest.mark.parametrize(
    ("stalls", "times"),
    [
        ([], [2, 4, 6]),
        ([(0.0, 10.0)], [12, 14, 16]),
        ([(2.0, 0.5)], [2, 4.5, 6.5]),
        ([(2.1, 10.0)], [2, 4, 16]),
        ([(1.0, 10.0), (2.0, 5.0), (19.0, 1.0)], [2, 19, 22]),
        ([(99.0, 1.0)], [2, 4, 6]),
    ],
)
def test_the_first_step_that_begins_at_a_stall_or_later_takes_so_much_longer(stalls, times):
    given = [*stalls]
    time = VirtualTime(Seconds(), given)
    assert time.now() == 0
    found = []
    for _ in range(3):
        time.pass_step(Step())
        found.append(time.now())
    assert found == times
    assert given == stalls


@pytest.mark.parametrize(
    "stalls",
    [
        [(2.0, 1.0), (1.0, 1.0)],
        [(1.0, 0.0)],
        [(1.0, -0.5)],
        [(1.0, inf)],
        [(1.0, nan)],
        [(1.0, 1.0), (2.0, 0.0)],
    ],
)
def test_stalls_out_of_order_or_without_a_length_are_refused(stalls):
    with pytest.raises(ValueError, match="stalls are in order and longer than 0 s, got"):
        VirtualTime(Seconds(), stalls)


def test_time_never_goes_back():
    time = VirtualTime(Seconds())
    time.wait_until(3.5)
    time.wait_until(1.0)
    assert time.now() == 3.5
    time.pass_step(Step())
    assert time.now() == 5.5


def test_a_step_returns_whom_it_gave_a_first_token_and_whom_it_ended():
    """A (2 + 3) and B (1 + 1) end their prompts at 5 s, A has more tokens at 8 and 11 s."""
    server = SimulatedServer(Scheduler(KVMemory(9, 1)), Seconds())
    assert not server.has_work
    a, b = server.send(Request(0, None, 2, 3)), server.send(Request(1, None, 1, 1))
    assert server.has_work and server.progress(a) == Progress(0, False, 0)
    assert server.step() == [b, a]
    assert server.progress(a) == Progress(1, False, 0)
    assert server.progress(b) == Progress(1, True, 0)
    assert (server.step(), server.now()) == ([], 8.0)
    server.wait_until(20.0)
    assert server.step() == [a]
    assert not server.has_work
    assert (a.arrived_s, a.first_token_s, a.finished_s, b.finished_s) == (0.0, 5.0, 23.0, 5.0)
    late = server.send(Request(2, None, 1, 1))
    assert late.arrived_s == 23.0


def test_who_could_never_be_served_is_refused():
    server = SimulatedServer(Scheduler(KVMemory(9, 1)), Seconds())
    assert server.send(Request(0, None, 9, 1)) is None
    assert not server.has_work


def test_who_lost_its_memory_is_told():
    server = SimulatedServer(Scheduler(KVMemory(10, 1)), Seconds())
    _, b = (server.send(Request(i, None, 4, 4)) for i in range(2))
    for _ in range(3):
        server.step()
    assert server.progress(b) == Progress(2, False, 1)
