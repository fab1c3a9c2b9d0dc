"""Random requests on a scheduler, under every combination of memory, policies and limits."""

from __future__ import annotations

from typing import Any

from kvlib.admission import (
    AdmitAboveMargin,
    AdmitDiscounted,
    AdmitPredictedPeak,
    AdmitPrompt,
    AdmitReserved,
)
from kvlib.arena import Arena
from kvlib.buddy import BuddyArena
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.fair_line import FairLine
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.plan import SequenceTooLong
from kvlib.preemption import SwapSpace, fewest_outputs, lowest_priority, newest, oldest
from kvlib.priority import PriorityPolicy, Retain
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.reservation import ReservePowerOfTwo
from kvlib.retention import RankedLFU, RankedLRU
from kvlib.scheduled_step import Step, StepLimits
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.slot_memory import SlotMemory
from kvlib.waiting import FirstComeLine, PriorityLine
from operation_steps import Subject, subject

ADMISSIONS = (
    AdmitPrompt,
    lambda: AdmitPrompt(watermark=0.2),
    lambda: AdmitAboveMargin(0.15),
    AdmitReserved,
    lambda: AdmitReserved(ReservePowerOfTwo(32)),
    lambda: AdmitReserved(max_total_tokens=22),
    lambda: AdmitPredictedPeak(least_outputs=3),
    lambda: AdmitDiscounted(steps=3),
)
LIMITS = (
    StepLimits(),
    StepLimits(max_tokens=5, max_running=3),
    StepLimits(max_tokens=7, chunked_prefill=False),
    StepLimits(max_tokens=12, prefill_first=True),
)
VICTIMS = (newest, oldest, fewest_outputs, lowest_priority)
LINES = (FirstComeLine, PriorityLine, FairLine)


class Serving(Subject):
    """Requests come, run, are cancelled; steps fail, are never reported, or fail in the report."""

    rules = ("_add", "_add", "_run", "_run", "_run", "_schedule", "_drop", "_refuse")
    partial = frozenset({"_run", "_schedule", "_drop"})

    def memory(self) -> Any:
        """Returns an empty memory; some of its places may fail."""
        blocks, size = self.random.choice([(24, 1), (7, 4), (3, 16)])
        index = self.random.choice(
            [
                None,
                HashIndex,
                RadixTree,
                lambda pool: HashIndex(pool, RankedLFU()),
                lambda pool: RadixTree(pool, RankedLRU()),
                lambda pool: HashIndex(pool, PriorityPolicy(self.retain, self.clock)),
                lambda pool: RadixTree(pool, PriorityPolicy(self.retain, self.clock)),
            ]
        )
        made = KVMemory(blocks, size, index)
        self.faults.before(made.pool, "allocate")
        return made

    def retain(self, content: Any, i: int) -> Retain:
        """Says how long a block should stay, or fails."""
        self.faults.here()
        return Retain(40 + 20 * (i % 3), 2.0)

    def clock(self) -> float:
        """Returns a time, or fails."""
        self.faults.here()
        return float(self.num_made)

    def victim(self, running: Any) -> Any:
        """Chooses who loses memory, or fails."""
        self.faults.here()
        return self.choose(running)

    def build(self) -> None:
        choice, self.num_made = self.random.choice, 0
        memory, admission, swap = self.memory(), choice(ADMISSIONS)(), choice([None, 9, 1000])
        for name in ("room", "admits"):
            self.faults.before(admission, name)
        self.faults.before(memory, "index")
        self.faults.after(memory, "stop")
        self.choose = choice(VICTIMS)
        self.scheduler = Scheduler(
            memory,
            limits=choice(LIMITS),
            admission=admission,
            victim=self.victim,
            swap=swap and SwapSpace(swap),
            waiting=choice(LINES)(),
        )
        self.live: list[ServedRequest] = []
        self.step: Any = None

    def state(self) -> Any:
        here = self.scheduler
        orders = [job.order for job in here.running], sorted(job.order for job in here.waiting)
        return here.load_tokens, orders, here.memory.num_free, here.memory.num_kept

    def check(self) -> None:
        here = self.scheduler
        here.check()
        self.live = [job for job in self.live if job.finished_s is None]
        there = sorted(job.order for job in (*here.waiting, *here.running))
        assert there == [job.order for job in self.live], f"{there} wait or run, {self.live} live"
        memory = here.memory
        held, kept, free = memory.num_held, memory.num_kept, memory.num_free
        scattered = 0 if memory.grows or isinstance(memory, SlotMemory) else memory.size
        lost = memory.size - held - free
        assert 0 <= lost <= scattered and free >= kept, f"{held} held, {free} free, {kept} kept"

    def finish(self) -> None:
        """Everybody comes to an end, in a number of steps that can be told."""
        here, left = self.scheduler, 20_000
        while here.has_work:
            assert left, f"{here.num_waiting} wait and {here.num_running} run for ever"
            left -= 1
            here.report(here.schedule())
        self.check()
        assert not self.live, f"{len(self.live)} requests are lost"
        assert here.memory.num_held == here.load_tokens == 0, "memory is held by nobody"
        swap = here.running.swap
        assert swap is None or swap.num_free == swap.num_tokens, "swap space"

    def _add(self) -> None:
        if len(self.live) > 8:
            return
        prompt, output = self.random.randint(1, 16), self.random.randint(1, 20)
        alike, own = self.random.randint(0, 20), 100 * (1 + self.num_made)
        known = [*range(alike), *range(own, own + 99)][: prompt + output]
        request = Request(
            self.num_made,
            None,
            prompt,
            output,
            token_ids=tuple(known) if self.chance(0.7) else (),
            max_new_tokens=self.random.choice([None, 1, 5, 30]),
            tenant=self.random.choice("ab"),
            priority=self.random.randrange(3),
        )
        size = getattr(self.scheduler.memory, "block_size", 1)
        content = content_of(request, size, {"tenant": request.tenant})
        before = self.state()
        try:
            job = self.scheduler.add(request, content=content)
        except SequenceTooLong:
            assert self.state() == before, "a refused request left something behind"
            return
        self.num_made += 1
        self.live.append(job)

    def _schedule(self) -> None:
        """Also while a step is open: the model failed on it, and it is scheduled again."""
        self.step = None
        self.step = self.scheduler.schedule()
        jobs = [job for job, _ in self.step.work]
        assert len(set(jobs)) == len(jobs), "a request is twice in a step"
        for job, count in self.step.work:
            end = job.num_computed + count
            assert count and end <= min(job.num_tokens, job.room), f"{job.order} computes to {end}"

    def _run(self) -> None:
        self._schedule()
        if not self.chance(0.1):  # else the model failed
            step, self.step = self.step, None
            for job in self.scheduler.report(step, 1.0):
                assert job.num_tokens == job.stop_at, f"{job.order} ended at {job.num_tokens}"

    def _drop(self) -> None:
        """A client goes away, whether its request waits, runs, or is in an open step."""
        if self.live:
            job = self.live.pop(self.random.randrange(len(self.live)))
            self.scheduler.drop(job)
            self.refused(lambda: self.scheduler.drop(job), ValueError)
            if self.step is not None and self.chance(0.5):
                step, self.step = self.step, None
                self.scheduler.report(step, 1.0)

    def _refuse(self) -> None:
        first = Request(-1, None, self.scheduler.max_seq_len, 1)
        self.refused(lambda: self.scheduler.add(first), SequenceTooLong)
        self.refused(lambda: self.scheduler.report(Step(), 1.0), ValueError)


class InRows(Serving):
    """The same in memory that is handed out in pieces or rows."""

    def memory(self) -> Any:
        made = self.random.choice(
            [
                lambda: ContiguousMemory(BuddyArena(40)),
                lambda: ContiguousMemory(Arena(40)),
                lambda: SlotMemory(3, 24),
            ]
        )()
        if isinstance(made, ContiguousMemory):
            self.faults.before(made.allocator, "_take")
        return made


SUBJECTS = {
    "scheduler in blocks": Serving,
    "scheduler in rows": subject(InRows, fault_share=0.1),
}
