"""When a request is due, sent and answered: by hand, as `serve` has it, and under a stall."""

from dataclasses import FrozenInstanceError
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.kv_memory import KVMemory
from kvlib.load_run import LoadRun, Timing
from kvlib.load_test import Progress, load_test
from kvlib.request import Request
from kvlib.scheduled_step import Step, StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.serving_run import Target
from kvlib.simulated_server import SimulatedServer, VirtualTime
from kvlib.workloads import sample

CLOCK = RooflineClock(gpu("A10"), model("Llama-3-8B"))


class Second:
    """Every step takes a second."""

    def seconds(self, step):
        return 1.0


def server(clock=None, *, max_running=256, stalls=(), size=100):
    scheduler = Scheduler(KVMemory(size, 1), limits=StepLimits(max_running=max_running))
    return SimulatedServer(scheduler, clock or Second(), stalls=stalls)


def one_token(n, every):
    return [Request(i, i * every, 1, 1) for i in range(n)]


def test_times_by_hand():
    """As in test_serving: A (2 + 3) comes at 0; B (1 + 1) at 0.5 begins at 1; C (9 + 1) at 7.25."""
    rows = [Request(0, 0.0, 2, 3), Request(1, 0.5, 1, 1), Request(2, 7.25, 9, 1)]
    run = load_test(server(), rows)
    assert run.timings == (
        Timing(0, 0.0, 0.0, 1.0, 3.0, 3),
        Timing(1, 0.5, 1.0, 2.0, 2.0, 1),
        Timing(2, 7.25, 7.25, 8.25, 8.25, 1),
    )
    assert (run.duration_s, run.ttfts_s, run.tpots_s) == (8.25, [1.0, 1.5, 1.0], [1.0])
    target = Target(ttft_s=1.2, tpot_s=1.0)
    assert (run.good_share(target), run.goodput(target)) == (2 / 3, 2 / 8.25)
    assert [t.stay_s for t in run.timings] == [3.0, 1.5, 1.0]
    assert run.as_if_due_when_sent().ttfts_s == [1.0, 1.0, 1.0]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99), st.sampled_from([1.0, 2.5, 4.0]), st.sampled_from([800, 3000]))
def test_an_open_loop_has_the_times_of_serve(seed, rate, num_blocks):
    rows = sample("azure-conv", 60, seed, rate=rate).requests
    target = Target(ttft_s=2.0, tpot_s=0.05)

    def scheduler():
        return Scheduler(KVMemory(num_blocks, 16), limits=StepLimits(max_tokens=512))

    run = load_test(SimulatedServer(scheduler(), CLOCK), rows)
    other = serve(rows, scheduler(), CLOCK, target=target)
    assert (run.refused, run.preempted) == (other.refused, other.preempted)
    assert run.good_share(target) == other.good / other.num_requests
    assert run.ended_s == pytest.approx(other.now_s)
    answered = [t.ttft_s for t in run.timings if not t.refused]
    assert max(answered) == pytest.approx(other.ttft_s.max)
    assert sum(answered) / len(answered) == pytest.approx(other.ttft_s.mean)


def test_a_stall_is_one_bad_time_for_a_user_who_waits_and_many_on_the_schedule():
    """A second a request, due every 2 s; the server stops for 10 s at 6 s."""
    run = load_test(server(max_running=1, stalls=[(6.0, 10.0)]), one_token(10, 2.0), users=1)
    assert run.as_if_due_when_sent().ttfts_s == [1, 1, 1, 11, 1, 1, 1, 1, 1, 1]
    assert run.ttfts_s == [1, 1, 1, 11, 10, 9, 8, 7, 6, 5]
    assert [t.sent_s for t in run.timings] == [0, 2, 4, 6, 17, 18, 19, 20, 21, 22]


def test_with_users_enough_for_all_a_closed_loop_on_a_schedule_is_an_open_one():
    rows = sample("azure-conv", 50, 0, rate=3.0).requests
    make = lambda: SimulatedServer(Scheduler(KVMemory(3000, 16)), CLOCK)  # noqa: E731
    assert load_test(make(), rows, users=50) == load_test(make(), rows)
    assert load_test(make(), rows, users=2) != load_test(make(), rows)


def test_users_without_a_schedule_send_when_they_are_free_and_have_thought():
    rows = [Request(i, None, 1, 2) for i in range(4)]
    run = load_test(server(), rows, users=2, think_s=3.0)
    assert [t.due_s for t in run.timings] == [0, 0, 5, 5]
    assert [t.ttft_s for t in run.timings] == [1, 1, 1, 1]
    assert [t.finished_s for t in run.timings] == [2, 2, 7, 7]
    rows = [Request(i, None, 1, n) for i, n in enumerate((3, 1, 1))]
    assert [t.due_s for t in load_test(server(), rows, 2, think_s=10.0).timings] == [0, 0, 11]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 9), st.integers(1, 12), st.sampled_from([0.0, 0.7]))
def test_never_more_are_under_way_than_there_are_users(seed, users, think_s):
    rows = sample("azure-conv", 40, seed, rate=4.0).requests
    made = SimulatedServer(Scheduler(KVMemory(3000, 16)), CLOCK)
    run = load_test(made, rows, users, think_s)
    assert all(t.sent_s >= t.due_s for t in run.timings)
    ends = [(t.sent_s, 1) for t in run.timings] + [(t.finished_s, -1) for t in run.timings]
    under_way = most = 0
    for _, change in sorted(ends):
        under_way += change
        most = max(most, under_way)
    assert most <= users and under_way == 0
    if think_s == 0.0:
        assert most == users


def test_who_is_refused_is_infinitely_late_and_frees_the_user():
    rows = [Request(0, 0.0, 200, 1), Request(1, 0.0, 1, 1)]
    run = load_test(server(), rows, users=1)
    assert run.refused == 1
    assert run.ttfts_s == [inf, 1.0]
    assert (run.ttft_s(50), run.ttft_s(99)) == (1.0, inf)
    assert run.good_share(Target(9.0, 9.0)) == 0.5
    assert run.requests_per_s == 1.0


class Failing:
    """Takes every request, gives it one token in a step and then loses it."""

    def __init__(self):
        self._open, self._now = [], 0.0

    @property
    def has_work(self):
        return bool(self._open)

    def now(self):
        return self._now

    def wait_until(self, time_s):
        self._now = time_s

    def send(self, request):
        self._open.append(request)
        return request

    def step(self):
        self._now += 1.0
        lost, self._open = self._open, []
        return lost

    def progress(self, ticket):
        return Progress(1, True, failed=True)


class Empty(Failing):
    """Ends every request well, without a token."""

    def progress(self, ticket):
        return Progress(0, True)


class Losing(Failing):
    """Says nothing of what became of the requests."""

    def step(self):
        super().step()
        return []


@pytest.mark.parametrize("users", [None, 1])
def test_a_server_that_loses_a_request_ends_the_test_with_an_error_and_no_hang(users):
    with pytest.raises(RuntimeError, match="nothing to do, and 1 requests never ended"):
        load_test(Losing(), one_token(3, 5.0), users)


def test_where_all_are_refused_at_once_no_rate_is_above_0():
    run = load_test(server(), [Request(0, 0.0, 200, 1)])
    target = Target(9.0, 9.0)
    assert (run.duration_s, run.requests_per_s, run.goodput(target)) == (0.0, 0.0, 0.0)
    assert (run.good_share(target), run.mean_in_system) == (0.0, 0.0)


def test_a_step_tells_of_whom_it_gave_a_first_token_or_ended_and_of_nobody_else():
    made = server()
    first, second = made.send(Request(0, 0.0, 1, 3)), made.send(Request(1, 0.0, 1, 1))
    assert made.step() == [second, first]
    assert [made.step(), made.step(), made.has_work] == [[], [first], False]


def test_a_request_that_failed_keeps_no_target_though_it_began_in_time():
    run = load_test(Failing(), one_token(2, 5.0))
    assert run.ttfts_s == [1.0, 1.0]
    assert run.tpots_s == [inf, inf]
    assert run.good_share(Target(9.0, 9.0)) == 0 == run.requests_per_s


def test_an_end_without_a_token_is_no_answer():
    run = load_test(Empty(), one_token(2, 5.0))
    assert run.ttfts_s == run.tpots_s == [inf, inf] and run.requests_per_s == 0
    assert [t.finished_s for t in run.timings] == [1.0, 6.0]
    assert not any(t.answered for t in run.timings)


def test_a_request_that_was_only_sent_has_nothing_yet():
    assert Timing(3, 1.0, 2.0) == Timing(3, 1.0, 2.0, inf, inf, 0, 0, False)


def test_percentiles_of_later_tokens_leave_answers_of_one_token_out():
    rows = (Timing(0, 0, 0, 1, 5, 3), Timing(1, 0, 0, 1, 1, 1), Timing(2, 0, 0, 1, 7, 3))
    run = LoadRun(rows, 0.0, 7.0)
    assert (run.tpot_s(50), run.tpot_s(100)) == (2.0, 3.0)


def test_littles_law_the_count_of_those_there_is_rate_times_stay():
    for seed in range(3):
        rows = sample("azure-conv", 300, seed, rate=2.0).requests
        run = load_test(SimulatedServer(Scheduler(KVMemory(3000, 16)), CLOCK), rows)
        rate = len(run.timings) / run.duration_s
        stay = sum(t.stay_s for t in run.timings) / len(run.timings)
        assert run.mean_in_system == pytest.approx(rate * stay, rel=0.02)


def test_the_count_is_by_hand_that_of_those_due_before_a_step():
    rows = [Request(0, 0.0, 1, 2), Request(1, 0.5, 1, 1), Request(2, 4.0, 1, 1)]
    run = load_test(server(), rows)
    assert run.in_system == ((1.0, 1), (2.0, 2), (4.0, 0), (5.0, 1))
    assert run.mean_in_system == (1 + 2 + 0 + 1) / 5


def test_who_is_due_and_not_yet_sent_is_counted_too():
    rows = [Request(0, 0.0, 1, 2), Request(1, 0.5, 1, 1)]
    assert load_test(server(), rows, users=1).in_system == ((1.0, 1), (2.0, 2), (3.0, 1))
    unscheduled = [Request(i, None, 1, 1) for i in range(3)]
    assert load_test(server(), unscheduled, users=2).in_system == ((1.0, 2), (2.0, 1))


@pytest.mark.parametrize("users", [None, 1, 2])
def test_a_test_that_begins_later_has_the_same_times_later(users):
    rows = [Request(0, 0.0, 2, 3), Request(1, 0.5, 1, 1), Request(2, 7.25, 9, 1)]
    early, late = server(), server()
    late.wait_until(64.0)
    first, second = (load_test(each, rows, users) for each in (early, late))
    assert [t.due_s for t in second.timings] == [64.0, 64.5, 71.25]
    assert second.ttfts_s == first.ttfts_s
    assert (second.began_s, second.ended_s) == (64.0, first.ended_s + 64.0)
    assert second.mean_in_system == first.mean_in_system


def test_the_first_seconds_are_left_out_of_times_and_counts():
    rows = [Request(0, 0.0, 1, 2), Request(1, 0.5, 1, 1), Request(2, 4.0, 1, 1)]
    later = load_test(server(), rows).after(2.0)
    assert [t.request_id for t in later.timings] == [2]
    assert (later.duration_s, later.mean_in_system) == (3.0, 1 / 3)
    assert later.in_system == ((4.0, 0), (5.0, 1))
    with pytest.raises(ValueError, match=r"after 9\.0 s of 3"):
        later.after(9.0)


def test_a_stall_falls_into_the_first_step_at_or_after_its_moment_and_only_once():
    time = VirtualTime(Second(), [(0.0, 2.0), (3.5, 10.0), (3.75, 20.0)])
    ends = []
    for _ in range(4):
        time.pass_step(Step())
        ends.append(time.now())
    assert ends == [3.0, 4.0, 35.0, 36.0]
    time.wait_until(2.0)
    assert time.now() == 36.0


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: load_test(server(), []), "begins with requests"),
        (lambda: load_test(server(), [Request(0, None, 1, 1)]), "a time for every request"),
        (lambda: load_test(server(), one_token(2, 1.0)[::-1]), "each at least that before"),
        (lambda: load_test(server(), [Request(0, inf, 1, 1)]), "arrival times"),
        (lambda: load_test(server(), [Request(0, -0.5, 1, 1)]), "arrival times are at least 0"),
        (lambda: load_test(server(), one_token(2, 1.0), users=0), "users must be at least 1"),
        (lambda: load_test(server(), one_token(2, 1.0), 1, -1.0), "think_s is at least 0"),
        (lambda: VirtualTime(Second(), [(2.0, 1.0), (1.0, 1.0)]), "in order"),
        (lambda: VirtualTime(Second(), [(2.0, 0.0)]), "longer than 0"),
    ],
)
def test_what_makes_no_test_is_refused_before_anything_is_sent(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_a_server_with_work_is_refused():
    busy = server()
    busy.send(Request(0, 0.0, 1, 1))
    with pytest.raises(ValueError, match="nothing to do"):
        load_test(busy, one_token(1, 1.0))


def test_what_was_found_stays():
    run = LoadRun((Timing(0, 0.0, 0.0),), 0.0, 1.0)
    for each, name in ((run, "ended_s"), (run.timings[0], "due_s")):
        with pytest.raises(FrozenInstanceError):
            setattr(each, name, 2.0)


def test_a_run_of_nothing_has_no_count():
    assert LoadRun((), 0.0, 1.0).mean_in_system == 0.0
    assert LoadRun((), 0.0, 2.0, ((2.0, 3),)).mean_in_system == 3.0
