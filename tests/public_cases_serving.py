"""Public cases about who runs, who loses memory and comes back, what is fetched and counted."""

import pytest
import torch

import test_prefetch
import test_tiered
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.plan import SequenceTooLong
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.serving_run import ServingRun
from public_cases import case


def steps_of(scheduler, most=200):
    """Runs to the end; yields each step's work as pairs of a request's order and tokens."""
    for _ in range(most):
        if not scheduler.has_work:
            return
        step = scheduler.schedule()
        yield [(job.order, n) for job, n in step.work], step
        scheduler.report(step)
        scheduler.check()
    raise AssertionError(f"work is left after {most} steps")


@case("SD-1")
def who_could_never_fit_holds_up_nobody():
    scheduler = Scheduler(KVMemory(49, 16))
    jobs = [scheduler.add(Request(i, None, 20, 5)) for i in range(10)]
    with pytest.raises(SequenceTooLong, match=r"prompt of 1002 tokens, max_seq_len 784"):
        scheduler.add(Request(10, None, 1002, 5))
    jobs.append(scheduler.add(Request(11, None, 20, 5)))
    assert -(-1002 // 16) == 63 > scheduler.memory.size // 16 == 49
    assert len(list(steps_of(scheduler))) < 20
    assert [job.num_outputs for job in jobs] == [5] * 11


@case("SD-3")
def alone_a_request_ends_where_memory_does():
    """The last of eight tokens is never stored; nobody is preempted for it."""
    scheduler = Scheduler(KVMemory(4, 4), max_seq_len=16)
    job = scheduler.add(Request(0, None, 8, 30))
    assert len(list(steps_of(scheduler))) == 8
    assert (job.num_outputs, job.num_preempted, job.num_tokens) == (8, 0, job.limit)
    run = serve([Request(0, None, 8, 30)], Scheduler(KVMemory(4, 4)))
    assert (run.finished, run.cut_short, run.preempted) == (1, 1, 0)


@case("PR-1")
def what_was_generated_is_computed_again_too():
    scheduler = Scheduler(KVMemory(14, 1))
    first, second = (scheduler.add(Request(i, None, 5, n)) for i, n in enumerate((4, 6)))
    work = [each for each, _ in steps_of(scheduler)]
    assert second.num_preempted == 1 and second.num_lost == 7 and not first.num_preempted
    assert work == [[(0, 5), (1, 5)], *[[(0, 1), (1, 1)]] * 2, [(0, 1)], [(1, 8)], *[[(1, 1)]] * 2]
    assert (first.num_outputs, second.num_outputs) == (4, 6)


@case("PR-3")
def what_is_cached_is_asked_for_when_memory_is_given():
    for index in (HashIndex, RadixTree):
        memory = KVMemory(3, 256, index)
        scheduler = Scheduler(memory)
        job = scheduler.add(Request(0, None, 600, 1), content=TokenContent(range(600), 256))
        memory.start(job, 600)
        job.num_computed = 600
        memory.index(job)
        memory.stop(job)
        step = scheduler.schedule()
        assert (job.num_cached, step.work, len(job.block_ids)) == (512, [(job, 88)], 3)
        assert job.num_computed + 88 == 600


@case("PR-4")
def a_small_memory_shortens_nobody():
    ended = []
    for num_blocks in (100, 6):
        scheduler = Scheduler(KVMemory(num_blocks, 4))
        jobs = [scheduler.add(Request(i, None, 5 + i, 9)) for i in range(3)]
        preempted = sum(step.num_preempted for _, step in steps_of(scheduler))
        ended.append(([job.num_tokens for job in jobs], preempted > 0))
    assert ended == [([14, 15, 16], False), ([14, 15, 16], True)]


@case("BM-3")
def what_is_found_after_a_preemption_is_no_hit():
    """Of 64 tokens and one generated 64 are found again; no user brought them."""
    scheduler, run = Scheduler(KVMemory(8, 16, HashIndex)), ServingRun(None, timed=False)
    job = scheduler.add(Request(0, None, 64, 40), content=TokenContent(range(104), 16))
    scheduler.report(scheduler.schedule())
    scheduler._preempt(job, scheduler.schedule())
    for _, step in steps_of(scheduler):
        assert step.num_tokens < 64, "it is found, and not computed again"
    run.ended(job)
    assert (job.num_cached, run.cached_tokens, run.prefix_hit_rate) == (64, 0, 0.0)


@case("TI-1")
def a_swapped_block_reads_as_it_was_written():
    cache = test_tiered.two_blocks(torch.device("cpu"))
    assert test_tiered.ti_1(cache) == [1.0] * 100
    cache.check()
    cache.close()


case("TI-3")(test_prefetch.test_TI_3_planned_and_fetched_amounts_differ_by_the_overlap)
case("TI-5")(test_prefetch.test_TI_5_a_hit_is_whole_chunks)
