"""Whatever comes, runs, fails or gives up, under every combination of policies: nothing is lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlib.admission import AdmitDiscounted, AdmitPredictedPeak, AdmitPrompt, AdmitReserved
from kvlib.buddy import BuddyArena
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.fair_line import FairLine
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.plan import SequenceTooLong
from kvlib.preemption import SwapSpace, fewest_outputs, lowest_priority, newest, oldest
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.reservation import ReservePowerOfTwo
from kvlib.retention import RankedLRU
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving_run import ServingRun
from kvlib.waiting import FirstComeLine, PriorityLine

MEMORIES = [
    *(
        lambda n=num_blocks, size=size, index=index: KVMemory(n, size, index)
        for num_blocks, size in ((24, 1), (7, 4), (3, 16))
        for index in (None, HashIndex, RadixTree, lambda pool: RadixTree(pool, RankedLRU()))
    ),
    lambda: ContiguousMemory(BuddyArena(40)),
]
ADMISSIONS = [
    AdmitPrompt,
    lambda: AdmitPrompt(watermark=0.2),
    AdmitReserved,
    lambda: AdmitReserved(ReservePowerOfTwo(32)),
    lambda: AdmitReserved(max_total_tokens=22),
    lambda: AdmitPredictedPeak(least_outputs=3),
    lambda: AdmitPredictedPeak(told=True),
    lambda: AdmitDiscounted(steps=3),
]
LIMITS = [
    StepLimits(),
    StepLimits(max_tokens=5, max_running=3),
    StepLimits(max_tokens=7, chunked_prefill=False),
    StepLimits(max_tokens=12, prefill_first=True),
    StepLimits(max_tokens=9, max_running=4, chunked_prefill=False, prefill_first=True),
]
ROWS = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, 16),
        "output": st.integers(1, 20),
        "alike": st.integers(0, 20),
        "known": st.booleans(),
        "max_new_tokens": st.sampled_from([None, 1, 5, 30]),
        "tenant": st.sampled_from("ab"),
        "priority": st.integers(0, 2),
    }
)
MOST_LIVE = 12


class AnyOrder(RuleBasedStateMachine):
    """Requests come and go while steps are scheduled, reported, or fail and are never reported."""

    @initialize(
        memory=st.sampled_from(MEMORIES),
        admission=st.sampled_from(ADMISSIONS),
        victim=st.sampled_from([newest, oldest, fewest_outputs, lowest_priority]),
        swap=st.sampled_from([None, 9, 1000]),
        line=st.sampled_from([FirstComeLine, PriorityLine, FairLine]),
        limits=st.sampled_from(LIMITS),
        max_seq_len=st.sampled_from([None, 20]),
    )
    def build(self, memory, admission, victim, swap, line, limits, max_seq_len):
        self.scheduler = Scheduler(
            memory(),
            limits=limits,
            admission=admission(),
            victim=victim,
            swap=swap and SwapSpace(swap),
            waiting=line(),
            max_seq_len=max_seq_len,
        )
        self.live, self.num_added, self.step = [], 0, None

    def state(self):
        s = self.scheduler
        return (s.load_tokens, [*s.running], [*s.waiting], s.memory.num_free, s.memory.num_kept)

    @precondition(lambda self: len(self.live) < MOST_LIVE)
    @rule(rows=st.lists(ROWS, min_size=1, max_size=5))
    def add(self, rows):
        for row in rows:
            self.add_one(**row)

    def add_one(self, prompt, output, alike, known, **changes):
        """Texts begin with the same `alike` tokens, and no two go on in the same way."""
        own = 100 * (1 + self.num_added)
        token_ids = [*range(alike), *range(own, own + 99)][: prompt + output] if known else ()
        request = Request(self.num_added, None, prompt, output, token_ids=token_ids, **changes)
        block_size = getattr(self.scheduler.memory, "block_size", 1)
        content = content_of(request, block_size, {"tenant": request.tenant})
        before = self.state()
        try:
            job = self.scheduler.add(request, content=content)
        except SequenceTooLong:
            assert self.state() == before
            return
        assert job.order == self.num_added
        self.num_added += 1
        self.live.append(job)

    @rule(num_steps=st.integers(1, 8))
    def run(self, num_steps):
        for _ in range(num_steps):
            self.schedule()
            self.report()
            self.holds()

    @rule()
    def schedule(self):
        """Also while a step is open: the model failed on it, and it is scheduled again."""
        scheduler, limits = self.scheduler, self.scheduler.limits
        began_before = set(scheduler.running)
        self.step = step = scheduler.schedule()
        jobs = [job for job, _ in step.work]
        assert len(set(jobs)) == len(jobs)
        assert set(jobs) <= set(scheduler.running)
        assert all(n >= 1 and job.num_computed + n <= job.num_tokens for job, n in step.work)
        assert all(job.num_computed + n <= job.room for job, n in step.work)
        assert step.num_tokens <= limits.max_tokens or (
            len(jobs) == 1 and not limits.chunked_prefill
        )
        assert len(scheduler.running) <= limits.max_running
        if step.num_preempted:
            assert set(scheduler.running) <= began_before
        assert jobs or step.num_preempted or not scheduler.has_work
        run = ServingRun(None, timed=False)
        run.began(scheduler, step, 1.0)
        assert min(run.part_s.values()) >= 0
        assert sum(run.part_s.values()) == scheduler.memory.size

    @precondition(lambda self: self.step)
    @rule()
    def report(self):
        made = {job: job.num_tokens for job in self.live}
        done = self.scheduler.report(self.step)
        for job, before in made.items():
            assert job.num_tokens - before <= 1
        for job in done:
            self.live.remove(job)  # fails if it ended before
            assert job.num_tokens == job.stop_at
            assert job.num_outputs <= min(job.request.output_tokens, job.max_outputs)
            if job.num_outputs < job.request.output_tokens:
                assert job.num_tokens == job.limit
        self.step = None

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, MOST_LIVE))
    def drop(self, which):
        self.scheduler.drop(self.live.pop(which % len(self.live)))

    @invariant()
    def holds(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            waiting, running = [*self.scheduler.waiting], self.scheduler.running
            assert sorted(j.order for j in self.live) == sorted(
                j.order for j in (*waiting, *running)
            )

    def teardown(self):
        """All that are left come to their end, in a number of steps that can be told."""
        if not hasattr(self, "scheduler"):
            return
        outputs = sum(job.stop_at - job.request.prompt_tokens for job in self.live)
        chunks = 2 + 48 // self.scheduler.limits.max_tokens
        most = 1 + outputs * chunks * (1 + len(self.live))
        while self.scheduler.has_work:
            assert most, "requests wait or run for ever"
            most -= 1
            self.schedule()
            self.report()
            self.holds()
        assert not self.live
        assert self.scheduler.memory.num_held == self.scheduler.load_tokens == 0
        swap = self.scheduler.running.swap
        assert swap is None or swap.num_free == swap.num_tokens


AnyOrder.TestCase.settings = settings(max_examples=400, stateful_step_count=30)
TestAnyOrder = AnyOrder.TestCase
