"""Who loses memory, how it comes back, and what that costs: counted to the token."""

from random import Random

import pytest

from kvlib.buddy import BuddyArena
from kvlib.content import TokenContent
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.preemption import SwapSpace, fewest_outputs, lowest_priority, newest, oldest
from kvlib.request import Request
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.serving import serve
from kvlib.serving_run import ServingRun
from kvlib.waiting import FirstComeLine


def running(*rows):
    """Jobs that began in this order, of so many prompt and output tokens and of a priority."""
    return [
        ServedRequest(Request(i, None, prompt, 99, priority=priority), order, 0.0, 200, 200)
        for i, (order, prompt, _, priority) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("rule", "chosen"), [(newest, 3), (oldest, 0), (fewest_outputs, 2), (lowest_priority, 1)]
)
def test_each_rule_chooses_another(rule, chosen):
    """Order of arrival, prompt, outputs, priority; of equal ones the longer, or the later."""
    rows = [(3, 9, 5, 1), (2, 9, 4, 2), (1, 8, 2, 2), (0, 7, 2, 0)]
    jobs = running(*rows)
    for job, (_, prompt, outputs, _) in zip(jobs, rows, strict=True):
        job.num_tokens = prompt + outputs
    assert rule(jobs) is jobs[chosen]


def scheduled(num_tokens, rows, **options):
    served = Scheduler(KVMemory(num_tokens, 1), **options)
    jobs = [served.add(Request(i, None, *row)) for i, row in enumerate(rows)]
    return served, jobs


def one_step(served):
    step = served.schedule()
    served.check()
    work = [(job.order, n) for job, n in step.work]
    served.report(step)
    return step, work


def test_what_the_victim_had_of_a_step_goes_to_those_behind():
    """Three tokens a step, nine of memory. A has its token when B takes its memory: C gets two."""
    limits = StepLimits(max_tokens=3)
    served, _ = scheduled(9, [(1, 9), (1, 9), (6, 1)], victim=oldest, limits=limits)
    assert one_step(served)[1] == [(0, 1), (1, 1), (2, 1)]
    step, work = one_step(served)
    assert (step.num_preempted, work) == (1, [(1, 1), (2, 2)])


def test_the_last_to_begin_loses_its_memory_and_is_first_in_line():
    """Ten tokens, A and B (4 + 4), then C: B goes before C, and nobody begins in that step."""
    served, (_, b) = scheduled(10, [(4, 4), (4, 4)])
    one_step(served)
    c = served.add(Request(2, None, 1, 1))
    assert one_step(served)[1] == [(0, 1), (1, 1)]
    step, work = one_step(served)
    assert (step.num_preempted, work) == (1, [(0, 1)])
    assert [*served.waiting] == [b, c]
    assert served.memory.num_free == 4  # C would have fitted
    assert b.num_preempted == 1


def test_all_known_tokens_are_computed_again():
    """Prompt 5 and 3 outputs: 8 tokens, and the next comes behind them. Source: vllm#5349."""
    served, (_, b) = scheduled(14, [(5, 5), (5, 5)])
    while not b.num_preempted:
        one_step(served)
    known, lost = b.num_tokens, b.num_lost
    assert (known, lost) == (8, 7)
    while b not in served.running:
        _, work = one_step(served)
    assert work == [(1, 8)]
    assert b.num_tokens == 9
    assert served.recomputed_tokens == 7


def test_blocks_that_stay_known_are_found_again_when_it_comes_back():
    """600 tokens in blocks of 256: 512 found, 88 computed, 3 blocks. Source: nano-vllm#211."""
    memory = KVMemory(4, 256, HashIndex)
    served = Scheduler(memory)
    job = served.add(Request(0, None, 600, 2), content=TokenContent(range(602), 256))
    one_step(served)
    served._preempt(job, served.schedule())
    step = served.schedule()
    assert step.work == [(job, 89)]  # 88 of the prompt, and the output that is known
    assert (job.num_cached, len(job.block_ids)) == (512, 3)
    assert served.recomputed_tokens == 600 - 512
    served.report(step)


def test_what_is_found_after_preemption_is_no_hit_of_a_user():
    """64 new tokens, preempted, all found again: a hit rate of 0. Source: vllm#25780."""
    memory = KVMemory(8, 16, HashIndex)
    served = Scheduler(memory)
    job = served.add(Request(0, None, 64, 2), content=TokenContent(range(66), 16))
    one_step(served)
    served._preempt(job, served.schedule())
    served.report(served.schedule())
    run = ServingRun(None, timed=False)
    run.ended(job)
    assert (job.num_cached, run.cached_tokens, run.prefix_hit_rate) == (64, 0, 0.0)


def serve_all(rows, num_tokens, **options):
    requests = [Request(i, None, *row) for i, row in enumerate(rows)]
    served = Scheduler(KVMemory(num_tokens, 1), **options)
    ended = {}
    leave = served.report

    def report(step, now_s):
        done = leave(step, now_s)
        ended.update((job.order, job.num_outputs) for job in done)
        return done

    served.report = report
    return serve(requests, served), ended


ROWS = [(random.randint(1, 30), random.randint(1, 40)) for random in [Random(0)] for _ in range(60)]


@pytest.mark.parametrize("victim", [newest, oldest, fewest_outputs, lowest_priority])
@pytest.mark.parametrize("swap", [None, 90, 10**6])
def test_preemption_shortens_nobody_and_every_token_is_accounted_for(victim, swap):
    """Of each request all tokens but the last are computed once, and those it lost once more.

    Source: vllm-project/vllm#16832.
    """
    swap = swap and SwapSpace(swap)
    run, ended = serve_all(ROWS, 100, victim=victim, swap=swap)
    assert run.preempted > 10
    assert ended == {i: output for i, (_, output) in enumerate(ROWS)}
    once = sum(prompt + output - 1 for prompt, output in ROWS)
    assert run.computed_tokens == once + run.recomputed_tokens
    if swap is None:
        assert run.recomputed_tokens > 0 == run.swapped_tokens
    elif swap.num_tokens > 1000:
        assert run.recomputed_tokens == 0 < run.swapped_tokens
        assert run.swapped_tokens % 2 == 0  # out and in again
    else:
        assert min(run.recomputed_tokens, run.swapped_tokens) > 0


def test_a_round_trip_through_the_host_computes_nothing_again():
    """B (4 + 4) goes out with 6 tokens when A needs a seventh, and comes back to its own."""
    space = SwapSpace(6)
    served, (_, b) = scheduled(12, [(4, 4), (4, 4)], swap=space)
    swapped = []
    while served.has_work:
        step, work = one_step(served)
        swapped += [(step.num_swapped, work, space.num_free)] if step.num_swapped else []
    assert swapped == [(6, [(0, 1)], 0), (6, [(1, 1)], 6)]
    assert (served.recomputed_tokens, b.num_swapped, b.num_lost) == (0, 0, 0)


def test_whoever_stands_behind_the_victim_goes_on_in_the_same_step():
    served, (a, b, c) = scheduled(9, [(3, 3), (3, 3), (3, 3)], victim=lambda running: running[1])
    one_step(served)
    assert one_step(served)[1] == [(0, 1), (2, 1)]
    assert (a.num_preempted, b.num_preempted, c.num_preempted) == (0, 1, 0)


class FailsOnce(FirstComeLine):
    """A line that counts service, and fails when it first hears of some."""

    counts_service, failed = True, False

    def served(self, job, num_tokens, output=False):
        if not self.failed:
            self.failed = True
            raise MemoryError


@pytest.mark.parametrize("swap", [None, 9])
def test_who_loses_its_memory_before_it_computed_anything_computes_nothing_again(swap):
    """The report fails for A (2 + 3), so that B (3 + 2) has begun and computed nothing."""
    swap = swap and SwapSpace(swap)
    served, (_, b) = scheduled(5, [(2, 3), (3, 2)], swap=swap, waiting=FailsOnce())
    with pytest.raises(MemoryError):
        served.report(served.schedule())
    step, work = one_step(served)
    assert (step.num_preempted, work, b.num_lost) == (1, [(0, 1)], 0)
    while served.has_work:
        one_step(served)
    assert (served.recomputed_tokens, b.num_outputs, b.num_started) == (0, 2, 2)


def test_who_finds_more_than_it_lost_computes_nothing_again():
    """A and B have one text. B has 2 of its 8 tokens when A needs a ninth, and comes back to 7."""
    served = Scheduler(KVMemory(16, 1, HashIndex), limits=StepLimits(max_tokens=10))
    _, b = (
        served.add(Request(i, None, 8, 4), content=TokenContent(range(12), 1)) for i in range(2)
    )
    assert [one_step(served)[1] for _ in range(3)] == [
        [(0, 8), (1, 2)],
        [(0, 1)],
        [(0, 1), (1, 1)],
    ]
    assert (b.num_lost, b.num_cached, b.num_cached_first) == (2, 7, 0)
    assert served.recomputed_tokens == 0


def test_who_is_dropped_gives_its_host_memory_back():
    space = SwapSpace(100)
    served, (_, b) = scheduled(10, [(4, 4), (4, 4)], swap=space)
    while not b.num_preempted:
        one_step(served)
    assert space.num_free == 100 - b.num_swapped < 100
    served.drop(b)
    served.check()
    assert space.num_free == 100


def test_what_cannot_grow_costs_nobody_else_its_memory():
    """Pieces of 4 and 8. A's fifth token needs a longer one; B's would not help, so B goes on."""
    served = Scheduler(ContiguousMemory(BuddyArena(16)))
    a, b = (served.add(Request(i, None, *row)) for i, row in enumerate([(4, 2), (5, 3)]))
    assert one_step(served)[1] == [(0, 4), (1, 5)]
    step, work = one_step(served)
    assert (a.num_preempted, b.num_preempted, step.num_preempted) == (1, 0, 1)
    assert work == [(1, 1)]
    assert one_step(served)[1] == [(1, 1), (0, 5)]


def test_host_memory_takes_in_what_fits_and_gives_back_what_it_took():
    space = SwapSpace(10)
    assert (space.take(11), space.take(10), space.take(1), space.num_free) == (0, 1, 0, 0)
    with pytest.raises(ValueError, match="give back 11 tokens, 10 were taken in"):
        space.give(11)
    space.give(4)
    assert space.num_free == 4
    with pytest.raises(ValueError, match="give back 7 tokens, 6 were taken in"):
        space.give(7)
    assert (space.take(0), space.give(0), space.num_free) == (True, None, 4)
    for call in (space.take, space.give):
        with pytest.raises(ValueError, match="num_tokens must be at least 0, got -1"):
            call(-1)
        with pytest.raises(TypeError, match="num_tokens must be a whole number"):
            call(1.0)
    assert space.num_free == 4
    for size, error in [(0, ValueError), (1.0, TypeError), (True, TypeError)]:
        with pytest.raises(error):
            SwapSpace(size)


@pytest.mark.parametrize(("num_free", "sound"), [(-1, 0), (0, 1), (4, 1), (10, 1), (11, 0)])
def test_no_more_of_host_memory_is_free_than_there_is(num_free, sound):
    space = SwapSpace(10)
    space.num_free = num_free
    if sound:
        space.check()
        return
    with pytest.raises(AssertionError, match=f"{num_free} tokens free of 10 in the swap space"):
        space.check()
