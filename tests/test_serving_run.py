"""What a run counts of each step and of each request, number by number."""

from dataclasses import asdict
from math import inf, nan

import pytest

from kvlib.buddy import BuddyArena
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.kv_memory import KVMemory
from kvlib.request import Request
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.serving_run import ServingRun, Target
from kvlib.waste import PARTS, MemorySplit

COUNTS = ("num_requests", "finished", "unfinished", "refused", "cut_short", "preempted", "good")
COUNTS += ("recomputed_tokens", "computed_tokens", "swapped_tokens", "prompt_tokens", "steps")
COUNTS += ("cached_tokens", "output_tokens", "busy_s", "now_s", "peak_running", "request_s")
COUNTS += ("kept_s",)


def counted(run):
    """All counts that are not 0."""
    return {name: getattr(run, name) for name in COUNTS if getattr(run, name)}


def test_a_run_begins_at_0():
    run = ServingRun(None, timed=True)
    assert counted(run) == {} and not run.stopped
    assert run.part_s == dict.fromkeys(PARTS, 0)
    assert (run.ttft_s.count, run.tpot_s.count) == (0, 0)
    assert (run.mean_running, run.prefix_hit_rate, run.recomputed_share) == (0, 0, 0)
    assert [run.share(part) for part in PARTS] == [0] * 5
    nothing = asdict(run.metrics("nobody"))
    assert {name: value for name, value in nothing.items() if value is not None} == {
        "name": "nobody",
        "admitted_requests": 0,
    }


@pytest.mark.parametrize("value", [0, -1.0, nan, inf])
@pytest.mark.parametrize("name", ["ttft_s", "tpot_s"])
def test_a_target_is_above_0_and_ends(name, value):
    with pytest.raises(ValueError, match=f"{name} must be above 0, got"):
        Target(**{"ttft_s": 1, "tpot_s": 1} | {name: value})
    assert Target(0.25, 0.01) == Target(ttft_s=0.25, tpot_s=0.01)


def test_a_step_is_counted_by_its_seconds():
    """Blocks of 4. A has 5 tokens of its 6 in room for 8, B 2 of its 4 in room for 4."""
    scheduler, run = Scheduler(KVMemory(5, 4)), ServingRun(None, timed=True)
    for i, (prompt, output) in enumerate([(5, 2), (2, 3)]):
        scheduler.add(Request(i, None, prompt, output))
    step = scheduler.schedule()
    step.num_preempted, step.num_swapped = 3, 11
    run.began(scheduler, step, 2.0)
    assert run.part_s == {
        "used": 2 * (5 + 2),
        "reservation": 2 * (2 + 2),
        "internal_fragmentation": 2 * 1,
        "external_fragmentation": 0,
        "free": 2 * 8,
    }
    assert counted(run) == {
        "steps": 1,
        "busy_s": 2.0,
        "preempted": 3,
        "swapped_tokens": 11,
        "computed_tokens": 7,
        "peak_running": 2,
        "request_s": 4.0,
    }
    scheduler.report(step)
    run.began(scheduler, scheduler.schedule(), 0.5)
    assert run.part_s["used"] == 14 + 0.5 * 9
    assert (run.steps, run.busy_s, run.mean_running) == (2, 2.5, 2.0)
    assert run.share("free") == (16 + 4) / 50
    assert run.metrics("two").split == MemorySplit(20, 7, 4, 1, 0, 8)


def test_a_hole_too_small_for_the_head_of_the_line_is_external_fragmentation():
    """Of 16, a piece of 8 and one of 4 are taken; the next asks for 8, and 4 are left."""
    scheduler = Scheduler(ContiguousMemory(BuddyArena(16)))
    for i, prompt in enumerate((7, 3, 6)):
        scheduler.add(Request(i, None, prompt, 1))
    run = ServingRun(None, timed=False)
    run.began(scheduler, scheduler.schedule(), 3.0)
    assert run.part_s == {
        "used": 3 * (7 + 3),
        "reservation": 3 * (1 + 1),
        "internal_fragmentation": 0,
        "external_fragmentation": 3 * 4,
        "free": 0,
    }


def ended(prompt, outputs, asked, *, arrived=0.0, first=1.0, finished=1.0, cached=0):
    request = Request(0, None, prompt, asked)
    job = ServedRequest(request, 0, arrived, 99, 99, num_tokens=prompt + outputs)
    job.first_token_s, job.finished_s, job.num_cached_first = first, finished, cached
    return job


def test_a_request_that_ended_is_counted():
    run = ServingRun(Target(ttft_s=1.0, tpot_s=0.5), timed=True)
    run.ended(ended(8, 3, 3, arrived=1.0, first=2.0, finished=3.0, cached=4))  # 1 s and 0.5 s
    run.ended(ended(8, 1, 2, first=0.75, finished=0.75))
    run.ended(ended(4, 5, 5, first=0.5, finished=3.0))  # 0.625 s a token: too slow
    run.ended(ended(4, 2, 2, first=1.5, finished=1.75))  # 1.5 s: too late
    run.now_s = 8.0
    assert counted(run) == {
        "finished": 4,
        "cut_short": 1,
        "prompt_tokens": 24,
        "output_tokens": 11,
        "cached_tokens": 4,
        "good": 2,
        "now_s": 8.0,
    }
    assert (run.ttft_s.count, run.ttft_s.mean, run.ttft_s.max) == (4, 3.75 / 4, 1.5)
    assert (run.tpot_s.count, run.tpot_s.max) == (3, 0.625)
    assert run.tpot_s.mean == pytest.approx((0.5 + 0.625 + 0.25) / 3)
    assert run.prefix_hit_rate == 4 / 24
    row = run.metrics("four")
    assert (row.goodput_requests_per_s, row.prefix_hit_rate) == (0.25, 4 / 24)
    run.recomputed_tokens, run.computed_tokens = 3, 12
    assert run.recomputed_share == 0.25


def test_a_row_has_the_median_of_the_times():
    run = ServingRun(None, timed=True)
    for i in range(1, 101):
        run.ended(ended(1, 2, 2, first=float(i), finished=float(i) + 2 * i))
    run.now_s = 300.0
    row = run.metrics("hundred")
    assert row.ttft_s == run.ttft_s.percentile(50) != run.ttft_s.percentile(49)
    assert row.tpot_s == run.tpot_s.percentile(50) == pytest.approx(100, rel=0.02)
    assert row.ttft_s == pytest.approx(50, rel=0.02)
    assert row.goodput_requests_per_s is None  # nobody set a target
    assert run.good == 0


def test_without_a_clock_there_are_no_times():
    run = ServingRun(None, timed=False)
    run.ended(ended(8, 3, 3))
    row = run.metrics("steps")
    assert (row.ttft_s, row.tpot_s, row.goodput_requests_per_s) == (None, None, None)
    assert (run.ttft_s.count, run.output_tokens) == (0, 3)
