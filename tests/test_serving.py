"""Serving against a clock or without: equal to other counts, refused, stopped, told, and flat."""

import sys
import tracemalloc
from math import nan

import pytest
from tqdm.auto import tqdm

from kvlib import workloads
from kvlib.admission import AdmitPrompt, AdmitReserved
from kvlib.arena import Arena
from kvlib.buddy import BuddyArena
from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.fair_line import FairLine
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.lognormal import Spread, lognormal
from kvlib.preemption import SwapSpace
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.reservation import ReserveMaximum, ReserveOracle, ReservePowerOfTwo
from kvlib.router import LeastLoaded, PrefixAffinity, RoundRobin
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.serving_run import ServingRun, Target
from kvlib.simulate import simulate
from kvlib.waste import PARTS


class Second:
    """Every step takes a second."""

    def seconds(self, step):
        return 1.0


def blocks(num_blocks=100, block_size=1, index=None, **options):
    return Scheduler(KVMemory(num_blocks, block_size, index), **options)


@pytest.mark.parametrize("policy", [ReserveMaximum(2048), ReservePowerOfTwo(2048), ReserveOracle()])
@pytest.mark.parametrize("make", [lambda: Arena(15_700), lambda: BuddyArena(15_700)])
def test_one_piece_a_request_is_counted_as_by_the_simulator(policy, make):
    """`simulate` counts a token as soon as it is made, a scheduler once its keys are in memory."""
    rows = list(lognormal(250, 0, Spread(161.31, 1.2), Spread(337.99, 0.9), max_seq_len=2047))
    other = simulate(rows, make(), policy)
    run = serve(
        rows,
        Scheduler(
            ContiguousMemory(make()),
            limits=StepLimits(10**6, 10**4),
            admission=AdmitReserved(policy),
            max_seq_len=2048,
        ),
    )
    counts = (run.finished, run.steps, run.request_s, run.peak_running, run.preempted)
    assert counts == (250, other.steps, other.request_steps, other.peak_running, 0)
    later = {"used": -other.request_steps, "reservation": other.request_steps}
    assert run.part_s == {p: other.unit_steps[p] + later.get(p, 0) for p in PARTS}


def test_times_by_hand():
    """A second a step. A (2 + 3) comes at 0; B (1 + 1) at 0.5 begins at 1; C (9 + 1) at 7.25."""
    rows = [Request(0, 0.0, 2, 3), Request(1, 0.5, 1, 1), Request(2, 7.25, 9, 1)]
    run = serve(rows, blocks(), Second(), target=Target(ttft_s=1.2, tpot_s=1.0))
    assert (run.now_s, run.busy_s, run.steps, run.finished) == (8.25, 4.0, 4, 3)
    assert run.ttft_s.count == 3
    assert run.ttft_s.max == 1.5
    assert run.ttft_s.mean == pytest.approx((1 + 1.5 + 1) / 3)
    assert (run.tpot_s.count, run.tpot_s.mean) == (1, 1.0)
    assert run.good == 2
    assert run.metrics("by hand").goodput_requests_per_s == 2 / 8.25
    # A holds 2, 3 and 4 tokens, B one, C nine: of 100 in each of four seconds.
    assert run.part_s["used"] == 2 + (3 + 1) + 4 + 9
    assert run.share("used") == 19 / 400
    assert run.mean_running == 5 / 4


def test_who_comes_at_the_end_of_a_step_may_begin_in_the_next():
    rows = [Request(0, 0.0, 2, 2), Request(1, 1.0, 2, 1)]
    run = serve(rows, blocks(), Second())
    assert (run.steps, run.peak_running) == (2, 2)


def test_who_never_fits_is_counted_and_nobody_is_lost():
    rows = [Request(0, None, 3, 2), Request(1, None, 100, 1), Request(2, None, 90, 90)]
    run = serve(rows, blocks())
    assert (run.num_requests, run.finished, run.refused, run.cut_short) == (3, 2, 1, 1)
    assert (run.prompt_tokens, run.output_tokens) == (93, 2 + 10)


def test_those_that_come_at_one_moment_begin_together():
    rows = [Request(i, 0.5, 2, 1) for i in range(4)]
    run = serve(rows, blocks(), Second())
    assert (run.steps, run.finished, run.now_s) == (1, 4, 1.5)
    run = serve(rows, [blocks(), blocks()], Second(), router=RoundRobin())
    assert (run.steps, run.finished, run.now_s) == (4, 4, 2.5)


def test_contents_are_asked_for_once_however_many_instances_look():
    asked = []
    rows = [Request(i, float(i), 8, 1, token_ids=tuple(range(9))) for i in range(4)]
    several = [blocks(9, 4, HashIndex) for _ in range(3)]

    def content(request):
        asked.append(request.request_id)
        return content_of(request, 4)

    serve(rows, several, Second(), content=content, router=PrefixAffinity())
    assert asked == [0, 1, 2, 3]


def test_what_a_router_asks_about_was_taken_in_by_nobody():
    """It has its tokens, and neither a place, a time, an end nor any room."""
    looked = []

    class Looker:
        def choose(self, request, instances):
            del looked[:]
            assert [each.cached_tokens(request) for each in instances] == [0, 0]
            assert len(looked) == 2
            for job in looked:
                assert (job.request, job.num_tokens, job.content.block_size) == (request, 8, 4)
                assert (job.order, job.arrived_s, job.limit, job.stop_at, job.room) == (0,) * 5
            return 1

    several = [blocks(9, 4, HashIndex) for _ in range(2)]
    for each in several:
        found = each.memory.cached_tokens
        each.memory.cached_tokens = lambda job, found=found: looked.append(job) or found(job)
    rows = [Request(3, 1.0, 8, 1, token_ids=tuple(range(9)))]
    run = serve(rows, several, Second(), content=lambda r: content_of(r, 4), router=Looker())
    assert run.finished == 1


def test_hits_are_counted_once_and_of_the_prompt():
    """The same eight tokens in blocks of 4 thrice: one block is found, twice."""
    rows = [Request(i, float(i), 8, 1, token_ids=tuple(range(9))) for i in range(3)]
    run = serve(rows, blocks(9, 4, HashIndex), Second(), content=lambda r: content_of(r, 4))
    assert (run.cached_tokens, run.prompt_tokens, run.prefix_hit_rate) == (8, 24, 8 / 24)
    assert run.computed_tokens == 8 + 4 + 4


def timed(*arrivals):
    return [Request(i, at, 3, 2) for i, at in enumerate(arrivals)]


LLAMA = model("Llama-3-8B")
BAD = [
    ((timed(0.0), [], None), {}, "nothing to do, one at least"),
    ((timed(0.0), [blocks(), blocks()], None), {}, "2 schedulers need a router"),
    ((timed(0.0), blocks(), None), {"target": Target(1, 1)}, "without a clock there is no latency"),
    ((timed(None), blocks(), Second()), {}, "request 0 has no arrival time"),
    ((timed(2.0, 1.0), blocks(), Second()), {}, "request 1 arrives at 1.0 s, after 2.0 s"),
    ((timed(-1.0), blocks(), Second()), {}, "request 0 arrives at -1.0 s"),
    ((timed(nan), blocks(), Second()), {}, "request 0 arrives at nan s"),
    (
        (timed(0.0), blocks(swap=SwapSpace(9)), RooflineClock(gpu("A10"), LLAMA)),
        {},
        "the clock was given no swap_gb_s",
    ),
]


@pytest.mark.parametrize(("arguments", "options", "message"), BAD)
def test_what_cannot_be_served_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        serve(*arguments, **options)


def test_a_scheduler_at_work_is_refused_and_goes_on():
    busy = blocks()
    busy.add(Request(0, None, 3, 2))
    with pytest.raises(ValueError, match="nothing to do"):
        serve([], busy)
    assert busy.num_waiting == 1


@pytest.mark.parametrize("bad", [{"ttft_s": 0}, {"tpot_s": -1}, {"ttft_s": nan}])
def test_a_target_nobody_can_keep_is_refused(bad):
    with pytest.raises(ValueError, match="must be above 0"):
        Target(**{"ttft_s": 1, "tpot_s": 1} | bad)


def test_progress_is_told_and_ends_at_all():
    told = []
    rows = (Request(i, float(i), 1, 1) for i in range(250))
    serve(rows, blocks(), Second(), progress=told.append)
    assert told == [100, 200, 250]


def test_the_bar_of_the_page_on_how_to_run_reaches_its_end(capsys):
    workload = [Request(i, None, 1, 2) for i in range(250)]
    with tqdm(total=len(workload), file=sys.stderr) as bar:
        run = serve(workload, blocks(), progress=lambda ended: bar.update(ended - bar.n))
    assert bar.n == run.finished == 250
    assert "250/250" in capsys.readouterr().err


@pytest.mark.parametrize("arrivals", [(0.0, 10.0, 20.0), (0.0, 0.0, 0.0)])
def test_without_draining_a_run_ends_when_all_have_come_and_nobody_waits(arrivals):
    """One at a time, two steps each: the last has had one of its own."""
    served = blocks(limits=StepLimits(max_running=1))
    run = serve(timed(*arrivals), served, Second(), drain=False)
    assert (run.num_requests, run.finished, run.unfinished, run.steps) == (3, 2, 1, 5)


def test_a_stopped_run_gives_what_it_has():
    """Stopped from within the call that tells: 100 have ended, others wait, run or never came."""

    def stop(finished):
        raise KeyboardInterrupt

    rows = (Request(i, i / 2, 1, 3) for i in range(1000))
    run = serve(rows, blocks(limits=StepLimits(max_running=4)), Second(), progress=stop)
    assert run.stopped
    assert 100 <= run.finished < 110
    assert run.num_requests == run.finished + run.refused + run.unfinished < 1000
    assert run.unfinished > 0
    assert run.ttft_s.count == run.finished
    assert not serve(timed(0.0), blocks(), Second()).stopped


def test_memory_does_not_grow_with_the_requests():
    """Requests come from a generator; four times as many leave nothing behind."""

    def peak(n):
        rows = (Request(i, i / 4, 5, 3) for i in range(n))
        tracemalloc.start()
        run = serve(rows, blocks(), Second())
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert run.finished == n
        return found

    peak(500)  # what is made once
    assert peak(8000) < 1.25 * peak(2000)


@pytest.mark.parametrize(
    ("router", "least", "most"),
    [(RoundRobin(), 0.3, 0.5), (LeastLoaded(), 0.55, 0.7), (PrefixAffinity(), 0.7, 0.8)],
)
def test_several_instances_serve_all_and_keep_their_own_prefixes(router, least, most):
    """Three instances of 1,504 tokens; one alone finds 0.78 of the prompt tokens."""
    rows, several = workloads.conversations(seed=0), [blocks(94, 16, HashIndex) for _ in range(3)]
    clock = RooflineClock(gpu("A10"), LLAMA)
    run = serve(rows, several, clock, content=lambda r: content_of(r, 16), router=router)
    assert run.finished + run.refused == run.num_requests == len(rows)
    assert sum(run.part_s.values()) == pytest.approx(94 * 16 * run.busy_s)
    assert least < run.prefix_hit_rate < most
    for each in several:
        each.check()
        assert each.load_tokens == 0


def test_a_router_sees_what_waits_and_runs():
    seen = []

    class Looker:
        def choose(self, request, instances):
            seen.append([(i.num_waiting, i.num_running, i.load_tokens) for i in instances])
            return 0

    rows = [Request(0, 0.0, 3, 9), Request(1, 0.5, 4, 1), Request(2, 0.5, 1, 1)]
    serve(rows, [blocks(), blocks()], Second(), router=Looker())
    assert seen == [[(0, 0, 0)] * 2, [(0, 1, 3), (0, 0, 0)], [(1, 1, 7), (0, 0, 0)]]


def test_a_line_that_shares_between_tenants_starves_nobody():
    """Tenant a floods; b's single request ends long before a's last."""
    rows = [Request(i, 0.0, 10, 5, tenant="a") for i in range(40)]
    rows.append(Request(40, 0.0, 10, 5, tenant="b"))
    ended = {}
    for line in (None, FairLine()):
        served = blocks(30, waiting=line)
        jobs = []
        add = served.add
        served.add = lambda *args, jobs=jobs, add=add: jobs.append(add(*args))
        serve(rows, served, Second())
        ended[line is None] = jobs[-1].finished_s
    assert ended[False] <= 10 < 50 < ended[True]


def test_a_sheet_adds_up_however_its_parts_are_rounded():
    """Six tenths each of three parts of 2: rounded one by one they would make 3."""
    run = ServingRun(None, timed=False, busy_s=1.0)
    run.part_s |= {"reservation": 0.6, "internal_fragmentation": 0.6, "free": 0.8}
    split = run.metrics("thirds").split
    assert split.total == 2
    assert min(split.used, split.reservation, split.internal_fragmentation, split.free) >= 0
    assert run.metrics("thirds").ttft_s is None


def test_nobody_at_all_takes_no_step():
    run = serve([], blocks(), Second())
    assert (run.steps, run.mean_running, run.prefix_hit_rate, run.recomputed_share) == (0, 0, 0, 0)
    assert run.share("used") == 0
    assert run.metrics("nobody").split is None


def test_a_watermark_is_kept_while_others_run():
    run = serve([Request(i, None, 40, 2) for i in range(3)], blocks(admission=AdmitPrompt(0.3)))
    assert (run.peak_running, run.finished) == (1, 3)
