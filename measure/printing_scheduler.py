"""A scheduler that prints a line of load now and then, as an engine does, and notes the truth."""

from __future__ import annotations

from collections.abc import Callable

from kvlib.scheduled_step import Step
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest


class Counts:
    """What happened since a line was printed last."""

    def __init__(self) -> None:
        self.prompt_tokens = self.output_tokens = self.new = self.cached = self.requests = 0


class Printing(Scheduler):
    """A scheduler that prints a line of load now and then, as an engine does."""

    def every(self, seconds: float, write: Callable[..., None]) -> None:
        """Prints every so many seconds of the clock."""
        self.seconds, self.write, self.due, self.counts = seconds, write, seconds, Counts()
        self.truth: list[list[float]] = []
        self.preempted = self.asked = self.found = 0
        self.now_s = 0.0

    def schedule(self) -> Step:
        """Schedules a step, and prints what is due."""
        step = super().schedule()
        if step.num_preempted:
            self.preempted += step.num_preempted
            self.write(self, "preempted", step.num_preempted)
        # After scheduling: who came between two steps has had its chance to begin.
        while self.now_s >= self.due:
            memory = self.memory
            shares = [round(part / memory.size, 4) for part in (memory.num_held, memory.num_kept)]
            self.truth.append([self.due, *shares])
            self.write(self, "load", self.due)
            self.due += self.seconds
            self.counts = Counts()
        return step

    def report(self, step: Step, now_s: float = 0.0) -> list[ServedRequest]:
        """Notes what a step has computed and found."""
        counts, before = self.counts, {job: job.num_outputs for job, _ in step.work}
        self.now_s = now_s
        for job, n in step.work:
            if not job.num_outputs and job.num_computed == job.num_cached:
                counts.requests += 1
                counts.cached += job.num_cached
                self.asked += job.request.prompt_tokens
                self.found += job.num_cached
            counts.new += n if not job.num_outputs else 0
        done = super().report(step, now_s)
        for job, made in before.items():
            counts.output_tokens += job.num_outputs - made
            counts.prompt_tokens += job.request.prompt_tokens * (made == 0 < job.num_outputs)
        return done
