"""Siblings of public faults in serving: capacity near its end, preemption, what is counted."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.admission import AdmitAboveMargin, AdmitPredictedPeak, AdmitPrompt, AdmitReserved
from kvlib.arena import Arena
from kvlib.buddy import BuddyArena
from kvlib.content import TokenContent
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.disaggregation import decode_instance, prefill_instance, serve_disaggregated
from kvlib.handover import Link
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.load_run import LoadRun, Timing
from kvlib.load_test import load_test
from kvlib.metrics import Metrics
from kvlib.percentiles import percentile, percentile_interval
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.preemption import SwapSpace, fewest_outputs, lowest_priority, newest, oldest
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.retention import DropAll, RankedFIFO, RankedLFU, RankedLRU
from kvlib.scheduled_memory import EngineMemory
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.serving_run import Target
from kvlib.simulated_server import SimulatedServer
from kvlib.slab import SlabPool
from kvlib.slot_memory import SlotMemory
from kvlib.waste import MemorySplit
from shadow_bytes import Shadow, names


class Second:
    """Every step takes a second."""

    def seconds(self, step):
        return 1.0


MEMORIES = {
    "blocks": lambda: KVMemory(8, 4),
    "hash": lambda: KVMemory(8, 4, HashIndex),
    "radix": lambda: KVMemory(8, 4, lambda pool: RadixTree(pool, RankedLRU())),
    "hash by use": lambda: KVMemory(8, 4, lambda pool: HashIndex(pool, RankedLFU())),
    "hash, oldest": lambda: KVMemory(8, 4, lambda pool: HashIndex(pool, RankedFIFO())),
    "drop all": lambda: KVMemory(8, 4, lambda pool: RadixTree(pool, DropAll(0.2))),
    "engine": lambda: EngineMemory(8, 4),
    "slots": lambda: SlotMemory(2, 16),
    "arena": lambda: ContiguousMemory(Arena(32)),
    "buddy": lambda: ContiguousMemory(BuddyArena(24)),
    "slab": lambda: ContiguousMemory(SlabPool(32, 9)),
}
VICTIMS = (newest, oldest, fewest_outputs, lowest_priority)
IN_BLOCKS = [name for name in MEMORIES if MEMORIES[name]().grows]


def text(seed, num_tokens):
    """Few different beginnings, so that requests share them."""
    random = Random(f"text/{seed % 3}")
    return [random.randrange(3) for _ in range(num_tokens // 2)] + [
        100 + seed * 50 + i for i in range(num_tokens - num_tokens // 2)
    ]


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize(
    "admission",
    [AdmitPrompt(), AdmitPrompt(0.5), AdmitAboveMargin(0.5), AdmitReserved(), AdmitPredictedPeak()],
    ids=lambda rule: f"{type(rule).__name__}{getattr(rule, 'watermark', '')}",
)
def test_at_the_end_of_capacity_a_request_is_refused_at_once_or_served_to_its_end(name, admission):
    """Every prompt up to just beyond what the memory holds, alone and behind one that runs."""
    most = MEMORIES[name]().most
    for prompt in range(max(1, most - 6), most + 3):
        for output in (1, 2, 40):
            for limits in (StepLimits(), StepLimits(max_tokens=most, chunked_prefill=False)):
                scheduler = Scheduler(MEMORIES[name](), admission=admission, limits=limits)
                jobs = [scheduler.add(Request(0, None, 3, 4))]
                try:
                    jobs.append(scheduler.add(Request(1, None, prompt, output)))
                except SequenceTooLong as error:
                    assert prompt >= most, f"{prompt} tokens fit, and were refused"
                    assert str(prompt) in str(error) and str(most) in str(error)
                jobs.append(scheduler.add(Request(2, None, 3, 2)))
                for _ in range(120):
                    if not scheduler.has_work:
                        break
                    scheduler.report(scheduler.schedule())
                    scheduler.check()
                assert not scheduler.has_work, f"a prompt of {prompt} runs or waits for ever"
                made = [min(job.request.output_tokens, job.max_outputs) for job in jobs]
                assert [job.num_outputs for job in jobs] == made


@settings(max_examples=60)
@given(
    name=st.sampled_from(IN_BLOCKS),
    lengths=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 12)), min_size=2, max_size=8),
    victim=st.sampled_from(VICTIMS),
    swap=st.sampled_from([None, 9, 100]),
    max_tokens=st.sampled_from([3, 7, 100]),
    chunked=st.booleans(),
)
def test_whoever_is_preempted_reads_its_own_text_to_the_end(
    name, lengths, victim, swap, max_tokens, chunked
):
    """With bytes beside the books: what is found, swapped or computed again is always its own."""
    memory = MEMORIES[name]()
    engine = isinstance(memory, EngineMemory)
    limits = StepLimits(max_tokens if chunked else 100, chunked_prefill=chunked)
    space = SwapSpace(swap) if swap and engine else None
    scheduler = Scheduler(memory, victim=victim, swap=space, limits=limits)
    texts, ends = {}, {}
    for i, (prompt, output) in enumerate(lengths):
        tokens = text(i, prompt + output)
        job = scheduler.add(
            Request(i, None, prompt, output, priority=i % 3), content=TokenContent(tokens, 4)
        )
        texts[job], ends[job] = names(tokens), min(prompt + output, memory.most)
    shadow = Shadow(memory)
    for _ in range(600):
        if not scheduler.has_work:
            break
        step = scheduler.schedule()
        shadow.carry_out()
        for job, n in step.work:
            shadow.compute(job, n, texts[job])
        scheduler.report(step)
        scheduler.check()
    assert not scheduler.has_work
    assert {job: job.num_tokens for job in ends} == ends
    assert memory.num_held == 0 and (space is None or space.num_free == space.num_tokens)


def test_the_shadow_finds_bytes_that_were_given_away():
    """A request whose blocks another has written meanwhile, and that goes on as if nothing was."""
    memory = KVMemory(2, 4)
    scheduler, shadow = Scheduler(memory), Shadow(memory)
    job = scheduler.add(Request(0, None, 4, 3), content=TokenContent(range(7), 4))
    step = scheduler.schedule()
    shadow.compute(job, 4, names(range(7)))
    scheduler.report(step)
    shadow.compute(job, 0, names(range(7)))
    shadow.slots[job.block_ids[0], 2] = names([9, 9, 9])[2]
    with pytest.raises(AssertionError, match="request 0 reads another's 2"):
        shadow.compute(job, 0, names(range(7)))


@settings(max_examples=80)
@given(
    name=st.sampled_from(IN_BLOCKS),
    served=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=6),
    running=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=3),
    wanted=st.tuples(st.integers(0, 5), st.integers(1, 36)),
)
def test_what_a_start_costs_is_what_it_takes(name, served, running, wanted):
    """It begins just where its cost is free, and a refusal leaves what was kept and its order."""
    memory = MEMORIES[name]()

    def job_of(order, seed, num_tokens):
        scheduler = Scheduler(KVMemory(99, 4))
        content = TokenContent(text(seed, num_tokens), 4)
        return scheduler.add(Request(order, None, num_tokens, 1), content=content)

    for i, (seed, num_tokens) in enumerate([*served, *running]):
        job = job_of(i, seed, num_tokens)
        if memory.cost(job, num_tokens) > memory.num_free:
            continue
        memory.start(job, num_tokens)
        job.num_computed = num_tokens
        memory.index(job)
        if i < len(served):
            memory.stop(job)
    job, free = job_of(99, *wanted), memory.num_free
    cost, found, kept = memory.cost(job, wanted[1]), memory.cached_tokens(job), memory.num_kept
    order = list(memory.pool._kept)
    if cost > free:
        with pytest.raises(OutOfBlocks):
            memory.start(job, wanted[1])
        assert (memory.num_free, memory.num_kept, memory.cached_tokens(job)) == (free, kept, found)
        assert list(memory.pool._kept) == order and not job.block_ids
    else:
        memory.start(job, wanted[1])
        assert free - memory.num_free == cost and job.num_cached == found < wanted[1]
    memory.check()
    assert memory.num_free + memory.num_held == memory.size


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 34), st.integers(1, 9)), min_size=1, max_size=12
)


def arrivals(rows):
    at, requests = 0.0, []
    for i, (gap, prompt, output) in enumerate(rows):
        at += gap if i else 0
        tokens = tuple(text(i, prompt + output))
        requests.append(Request(i, at, prompt, output, token_ids=tokens))
    return requests


def content(request):
    return TokenContent(request.token_ids, 4)


@settings(max_examples=50)
@given(rows=ROWS, name=st.sampled_from(IN_BLOCKS), patient=st.booleans())
def test_figures_of_a_run_follow_from_its_requests_alone(rows, name, patient):
    """Counted again from what each request got: nothing is missing, counted twice or above 1."""
    scheduler, ended = Scheduler(MEMORIES[name]()), []
    report = scheduler.report

    def noted(step, now_s):
        done = report(step, now_s)
        ended.extend(done)
        return done

    scheduler.report = noted
    target = Target(9 if patient else 2, 2)
    run = serve(arrivals(rows), scheduler, Second(), content=content, target=target)
    fits = [r for r in arrivals(rows) if r.prompt_tokens < 32]
    assert (run.num_requests, run.finished, run.unfinished) == (len(rows), len(fits), 0)
    assert run.refused == len(rows) - len(fits)
    assert run.output_tokens == sum(min(r.output_tokens, 32 - r.prompt_tokens) for r in fits)
    assert run.cut_short == sum(r.prompt_tokens + r.output_tokens > 32 for r in fits)
    assert run.prompt_tokens == sum(r.prompt_tokens for r in fits)
    assert run.cached_tokens == sum(job.num_cached_first for job in ended) <= run.prompt_tokens
    computed = run.prompt_tokens - run.cached_tokens + run.output_tokens - run.finished
    assert run.computed_tokens <= computed + run.recomputed_tokens
    assert run.preempted or run.computed_tokens == computed
    times = [(j.first_token_s - j.arrived_s, j.finished_s - j.first_token_s, j) for j in ended]
    good = [t for t, rest, j in times if t <= target.ttft_s and rest <= 2 * (j.num_outputs - 1)]
    assert run.good == len(good) and all(t >= 1 for t, _, _ in times)
    if ended:
        assert run.now_s == max(job.finished_s for job in ended)
        assert run.metrics("run").goodput_requests_per_s == len(good) / run.now_s
        assert run.ttft_s.mean == pytest.approx(sum(t for t, _, _ in times) / len(times))
    assert sum(run.part_s.values()) == pytest.approx(scheduler.memory.size * run.busy_s)


@settings(max_examples=20)
@given(rows=ROWS)
def test_two_pools_end_all_they_took(rows):
    run = serve_disaggregated(
        arrivals(rows),
        [prefill_instance(8, 4), prefill_instance(8, 4)],
        [decode_instance(8, 4)],
        Second(),
        Link(1e-9),
        token_bytes=1,
        target=Target(9, 9),
    )
    assert (run.unfinished, run.num_requests) == (0, run.finished + run.refused)
    assert run.finished == sum(r.prompt_tokens < 32 for r in arrivals(rows))
    assert all(0 <= share <= 1 for share in run.idle_shares) and run.good <= run.finished


@settings(max_examples=40)
@given(rows=ROWS, users=st.sampled_from([None, 1, 3]))
def test_a_load_test_counts_every_request_once(rows, users):
    server = SimulatedServer(Scheduler(KVMemory(8, 4)), Second())
    requests = [replace(r, token_ids=()) for r in arrivals(rows)]
    run = load_test(server, requests, users=users)
    assert [each.request_id for each in run.timings] == [r.request_id for r in requests]
    finished = sum(each.finished_s < float("inf") for each in run.timings)
    assert finished + run.refused == len(requests)
    assert run.requests_per_s * run.duration_s == pytest.approx(finished)
    assert all(each.due_s <= each.sent_s for each in run.timings)
    assert all(each.ttft_s >= 1 for each in run.timings)
    assert run.goodput(Target(2, 2)) <= run.requests_per_s


def test_an_answer_without_a_token_is_no_answer():
    """A server that ends a request at once and calls it a success is not fast, it is broken."""
    empty = Timing(0, 0.0, 0.0, finished_s=0.5)
    run = LoadRun((empty, Timing(1, 0.0, 0.0, 1.0, 2.0, 3)), 0.0, 2.0)
    assert run.requests_per_s == 0.5 and run.good_share(Target(9, 9)) == 0.5
    assert run.tpots_s == [float("inf"), 0.5] and empty.tpot_s == float("inf")


@pytest.mark.parametrize("rows", [[], [Request(0, 0.0, 99, 5)]], ids=["none", "all refused"])
@pytest.mark.parametrize("clock", [None, Second()], ids=["steps", "seconds"])
def test_a_run_in_which_nothing_ran_has_no_figures(rows, clock):
    """Not a division by zero, and not a hit rate, a latency or a rate of 0 that nobody measured."""
    run = serve(rows, Scheduler(KVMemory(2, 4)), clock, target=clock and Target(1, 1))
    assert (run.refused, run.finished, run.steps) == (len(rows), 0, 0)
    row = run.metrics("idle").row()
    measured = {name for name, said in row.items() if said != "not measured"}
    assert measured == {"name", "admitted_requests"} and row["admitted_requests"] == "0"
    assert run.share("used") == run.mean_running == run.recomputed_share == 0


def test_a_memory_of_nothing_is_not_used():
    nothing = MemorySplit(0, 0, 0, 0, 0, 0)
    assert nothing.utilization == 0.0
    assert Metrics("x", split=nothing).row()["split"].startswith("0.0% used")


@pytest.mark.parametrize("at", range(3))
def test_a_value_that_is_no_number_has_no_place_among_percentiles(at):
    """Where it stands in the list would else decide what the median is."""
    values = [2.0, 1.0]
    values.insert(at, float("nan"))
    with pytest.raises(ValueError, match="of numbers, 1 of 3 values are none"):
        percentile(values, 50)
    with pytest.raises(ValueError, match="of numbers, 1 of 3 values are none"):
        percentile_interval(values, 50, 0.5)


@pytest.mark.parametrize("name", IN_BLOCKS[1:])
def test_a_request_that_cannot_be_looked_up_is_refused_when_it_comes(name):
    """Later, at the head of the line, it would fail every step and let nobody else run."""
    scheduler = Scheduler(MEMORIES[name]())
    before = scheduler.add(Request(0, None, 9, 3), content=TokenContent(range(12), 4))
    with pytest.raises(ValueError, match="in blocks of 8, the memory's hold 4"):
        scheduler.add(Request(1, None, 9, 3), content=TokenContent(range(12), 8))
    behind = scheduler.add(Request(2, None, 9, 3), content=TokenContent(range(12), 4))
    scheduler.check()
    while scheduler.has_work:
        scheduler.report(scheduler.schedule())
    assert (before.num_outputs, behind.num_outputs, behind.order) == (3, 3, 1)
