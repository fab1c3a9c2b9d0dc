"""Counting without a clock: equal to a loop over single steps, and to what a hand can count."""

from dataclasses import asdict
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib import workloads
from kvlib.arena import Arena, best_fit
from kvlib.buddy import BuddyArena
from kvlib.fcfs import Job
from kvlib.paged_memory import PagedMemory
from kvlib.request import Request
from kvlib.reservation import (
    ReserveMaximum,
    ReserveOracle,
    ReservePercentile,
    ReservePowerOfTwo,
    ReservePrompt,
)
from kvlib.simulate import simulate
from kvlib.slab import SlabPool
from step_by_step import StepByStep


def requests(*rows):
    return [Request(i, *row) for i, row in enumerate(rows)]


def test_three_requests_by_hand():
    """Ten slots, oracle. A(2+2) and B(3+1) run at once and leave two slots; C(1+2) waits for B.

    step 0: A 3 of 4, B 4 of 4, and C would need 3 of the 2 left.
    step 1: A 4 of 4, C 2 of 3.   step 2: C 3 of 3, nobody else comes.
    """
    run = simulate(requests((None, 2, 2), (None, 3, 1), (None, 1, 2)), Arena(10), ReserveOracle())
    assert (run.finished, run.steps, run.request_steps, run.waiting_steps) == (3, 3, 5, 1)
    assert (run.peak_running, run.waited_with_room) == (2, 0)
    assert run.unit_steps == {
        "used": (3 + 4) + (4 + 2) + 3,
        "reservation": 1 + 1 + 0,
        "internal_fragmentation": 0,
        "external_fragmentation": 2,
        "free": 0 + 3 + 7,
    }
    assert run.mean_running == 5 / 3
    assert run.share("used") == 16 / 30


def test_blocks_by_hand():
    """Four blocks of 2. A(3+4) begins with two, B(1+2) with one.

    step 0: A 4 of 4, B 2 of 2; one block is free.
    step 1: A is full and takes it: 5 of 6. B is full too, loses its block and waits for two.
    step 2: A 6 of 6.   step 3: A is full and takes the last block: 7 of 8, done.
    step 4: B has two blocks: 3 of 4, done.
    """
    rows = requests((None, 3, 4), (None, 1, 2))
    run = simulate(rows, PagedMemory(4, 2), ReservePrompt())
    assert (run.finished, run.steps, run.preempted, run.recomputed_tokens) == (2, 5, 1, 2)
    assert (run.copied_tokens, run.overflowed, run.waited_with_room) == (0, 2, 0)
    assert run.unit_steps == {
        "used": (4 + 2) + 5 + 6 + 7 + 3,
        "reservation": 0 + 1 + 0 + 0 + 0,
        "internal_fragmentation": 0 + 0 + 0 + 1 + 1,
        "external_fragmentation": 0,
        "free": 2 + 2 + 2 + 0 + 4,
    }
    assert run.rounded_up == 0  # whole blocks were asked for


def test_without_draining_the_count_stops_when_nobody_waits():
    """One fits at a time, for two steps; when the third begins nobody waits any more."""
    rows = requests(*[(None, 2, 2)] * 3)
    run = simulate(rows, Arena(4), ReserveOracle(), drain=False)
    assert (run.finished, run.unfinished, run.steps, run.request_steps) == (2, 1, 4, 4)


def test_what_an_allocator_rounds_up_is_told_from_what_was_asked_for():
    """Five reserved for three tokens; the buddy gives eight."""
    rows = requests((None, 2, 1))
    run = simulate(rows, BuddyArena(8), ReserveMaximum(5))
    assert (run.unit_steps["internal_fragmentation"], run.rounded_up) == (5, 3)
    assert simulate(rows, Arena(8), ReserveMaximum(5)).rounded_up == 0


def test_what_is_free_is_judged_by_whoever_is_next():
    """Ten slots, oracle, a second a step. A (2 + 4) begins at 0 and leaves four of them.

    Where C (4 + 4) comes at 3 these are too few, and again while it waits; then it leaves two. B
    (2 + 2) could use them, comes before C and does.
    """
    a, b, c = (0.0, 2, 4), (2.0, 2, 2), (3.0, 4, 4)
    for rows, external, free in [((a, c), 4 * 4, 4 * 2), ((a, b, c), 0, 2 * 4 + 4 * 2)]:
        run = simulate(requests(*rows), Arena(10), ReserveOracle(), step_s=1)
        parts = run.unit_steps["external_fragmentation"], run.unit_steps["free"]
        assert (run.steps, parts) == (8, (external, free))


def test_just_enough_room_in_two_holes_is_room_that_nobody_can_use():
    """A and C (1 + 1) leave two slots each on both sides of B (2 + 2), where D asks for four."""
    rows = requests((None, 1, 1), (None, 2, 2), (None, 1, 1), (None, 2, 2))
    run = simulate(rows, Arena(8), ReserveOracle())
    assert (run.waited_with_room, run.waiting_steps, run.steps) == (1, 2, 4)
    assert (run.unit_steps["external_fragmentation"], run.unit_steps["free"]) == (4, 2 * 4)


def test_where_nobody_comes_any_more_a_single_slot_is_free():
    run = simulate(requests((None, 2, 2)), Arena(5), ReserveOracle())
    assert (run.unit_steps["external_fragmentation"], run.unit_steps["free"]) == (0, 2)


def test_a_job_on_its_way_has_its_fields_alone():
    job = Job(order=0, prompt=3, final=5, asked=5, since=2, arrived=1)
    assert (job.made, job.held, job.piece, job.begun) == (0, 3, None, False)
    with pytest.raises(AttributeError):
        job.helt = 4


class Three:
    """Reserves three slots for everybody."""

    max_seq_len = None

    def reserve(self, request):
        return 3


@pytest.mark.parametrize(("b_output", "copied"), [(1, 0), (2, 3)])
def test_growth_in_place_copies_nothing(b_output, copied):
    """A needs six at step 1. The three behind it are free by then only if B has left."""
    run = simulate(requests((None, 2, 3), (None, 1, b_output)), Arena(12), Three())
    assert (run.overflowed, run.copied_tokens, run.preempted) == (1, copied, 0)


def test_a_request_that_cannot_grow_waits_and_is_computed_again():
    """A has three tokens when it needs six of eight slots. B holds three until step 2.

    Then A gets its six, and has three of its four tokens still to make: steps 2, 3 and 4.
    """
    run = simulate(requests((None, 2, 4), (None, 1, 2)), Arena(8), Three())
    assert (run.overflowed, run.preempted, run.recomputed_tokens) == (1, 1, 3)
    assert (run.copied_tokens, run.waiting_steps, run.steps, run.finished) == (0, 1, 5, 2)


def test_who_could_never_fit_is_refused_and_does_not_wait():
    rows = requests((None, 2, 2), (None, 9, 2), (None, 2, 7))
    run = simulate(rows, Arena(10), ReserveOracle(max_seq_len=8))
    assert (run.finished, run.refused, run.turned_away) == (1, 2, 0)
    assert run.steps == 2
    run = simulate(requests((None, 2, 2)), Arena(10), ReserveMaximum(20))
    assert (run.refused, run.num_requests, run.steps) == (
        1,
        1,
        0,
    )  # more is asked for than there is


def test_nobody_at_all_takes_no_step():
    run = simulate(requests((None, 20, 1)), Arena(10), ReserveOracle())
    assert (run.refused, run.steps, run.mean_running, run.share("used")) == (1, 0, 0.0, 0.0)
    with pytest.raises(AttributeError):
        run.steps = 1


@pytest.mark.parametrize(
    ("patience", "turned_away", "waiting"), [(0, 2, 0), (1, 2, 2), (2, 1, 4), (None, 0, 6)]
)
def test_patience_decides_who_is_turned_away(patience, turned_away, waiting):
    """One fits at a time, for two steps; three come together."""
    rows = requests(*[(0.0, 2, 2)] * 3)
    run = simulate(rows, Arena(4), ReserveOracle(), step_s=1, patience_steps=patience)
    assert (run.turned_away, run.finished, run.waiting_steps) == (
        turned_away,
        3 - turned_away,
        waiting,
    )


def test_each_is_turned_away_when_its_own_patience_ends():
    """A has the memory until step 6; B comes at 1, C at 2 and D at 4, each for two steps."""
    rows = requests((0.0, 2, 6), (1.0, 2, 2), (2.0, 2, 2), (4.5, 2, 2))
    run = simulate(rows, Arena(8), ReserveOracle(), step_s=1, patience_steps=2)
    assert (run.turned_away, run.waiting_steps, run.finished, run.steps) == (2, 2 + 2 + 2, 2, 8)


def test_arrivals_are_counted_in_steps():
    """At 0.1 s a step, 0.25 s is step 2: one step of the three in between is idle."""
    rows = requests((0.0, 1, 1), (0.25, 1, 1))
    run = simulate(rows, Arena(4), ReserveOracle(), step_s=0.1)
    assert (run.steps, run.request_steps, run.unit_steps["used"]) == (3, 2, 4)


def test_a_smaller_one_does_not_overtake():
    """C would fit beside A, but B is before it in the line."""
    rows = requests((None, 4, 2), (None, 6, 2), (None, 1, 1))
    run = simulate(rows, Arena(8), ReserveOracle())
    assert (run.peak_running, run.steps) == (1, 5)


@pytest.mark.parametrize(
    ("rows", "policy", "options", "message"),
    [
        ([(None, 1, 1)], ReserveOracle(), {"step_s": 1}, "request 0 has no arrival time"),
        ([(1.0, 1, 1), (0.0, 1, 1)], ReserveOracle(), {"step_s": 1}, "step 0, after 1"),
        ([(-0.5, 1, 1)], ReserveOracle(), {"step_s": 1}, "step -1, after 0"),
        ([(0.0, 1, 1)], ReserveOracle(), {"step_s": 0}, "step_s must be above 0, got 0"),
        ([(0.0, 1, 1)], ReserveOracle(), {"patience_steps": -1}, "patience_steps must be at"),
        ([(None, 3, 1)], Three(), {}, "request 0: 3 leaves no room for a first token"),
    ],
)
def test_bad_input_changes_nothing(rows, policy, options, message):
    arena = Arena(8)
    with pytest.raises(ValueError, match=message):
        simulate(requests(*rows), arena, policy, **options)
    assert arena.num_free == 8


def test_the_allocator_must_be_empty():
    arena = Arena(8)
    arena.allocate(2)
    with pytest.raises(ValueError, match="not empty: it holds 1 pieces"):
        simulate([], arena, ReserveOracle())


ALLOCATORS = [
    lambda: Arena(37),
    lambda: Arena(37, best_fit),
    lambda: BuddyArena(37),
    lambda: SlabPool(37, 12),
    lambda: PagedMemory(12, 3),
    lambda: PagedMemory(37, 1),
]
POLICIES = [
    ReserveMaximum(12),
    ReservePowerOfTwo(16),
    ReserveOracle(),
    ReservePrompt(),
    ReservePrompt(17),
    ReservePercentile([1], 1),
    ReservePercentile([2], 1, max_seq_len=14),
]


@settings(max_examples=300)
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 8), st.integers(1, 9)), max_size=14),
    make=st.sampled_from(ALLOCATORS),
    policy=st.sampled_from(POLICIES),
    step_s=st.sampled_from([None, 1, 2]),
    patience=st.sampled_from([None, 0, 1, 4]),
    drain=st.booleans(),
)
def test_equal_to_a_loop_over_single_steps(rows, make, policy, step_s, patience, drain):
    workload = requests(*sorted((float(at), prompt, output) for at, prompt, output in rows))
    allocator, other = make(), make()
    options = {"step_s": step_s, "patience_steps": patience, "drain": drain}
    run = simulate(workload, allocator, policy, **options)
    assert asdict(run) == StepByStep(workload, other, policy, step_s, patience, drain).run()
    allocator.check()
    assert allocator.pieces == ()
    left = run.refused + run.turned_away
    assert run.num_requests == run.finished + run.unfinished + left
    assert drain <= (run.unfinished == 0)
    assert sum(run.unit_steps.values()) == allocator.size * run.steps


def chat():
    """The lengths of the chapters' thread: chat requests, cut to 2,048 tokens."""
    sample = workloads.sample("azure-conv", n=2000, seed=0)
    pairs = [(min(r.prompt_tokens, 2000), r.output_tokens) for r in sample]
    return requests(*((None, p, min(o, 2048 - p)) for p, o in pairs))


def notebook(rows, reserve):
    """The loop of fragmentation.ipynb: how many run as each is admitted, and over time."""
    arena, live, seen, clock, request_steps = Arena(15_728), [], [], 0, 0
    for r in rows:
        size = reserve(r.prompt_tokens + r.output_tokens)
        while not arena.can_allocate(size):
            clock, _, piece = heappop(live)
            arena.free(piece)
        heappush(live, (clock + r.output_tokens, r.request_id, arena.allocate(size)))
        seen.append(len(live))
        request_steps += r.output_tokens
    return sum(seen) / len(seen), request_steps / max(end for end, *_ in live)


@pytest.mark.parametrize(
    ("policy", "reserve", "as_admitted", "over_time"),
    [
        (ReserveMaximum(2048), lambda final: 2048, 7.0, 7.0),
        (ReserveOracle(), lambda final: final, 11.4, 11.1),
    ],
)
def test_the_chapters_thread_comes_out_again(policy, reserve, as_admitted, over_time):
    """The page averages over admissions, when more run than on average over time."""
    rows = chat()
    loop = notebook(rows, reserve)
    assert loop == pytest.approx((as_admitted, over_time), abs=0.051)
    run = simulate(rows, Arena(15_728), policy)
    assert run.mean_running == pytest.approx(loop[1], rel=0.005)
    assert run.finished == 2000
    if isinstance(policy, ReserveMaximum):
        assert run.waited_with_room == 0
        assert run.peak_running == 7
    else:
        assert 900 < run.waited_with_room < 1000
