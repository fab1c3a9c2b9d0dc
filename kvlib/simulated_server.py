"""A server for load tests that is a scheduler and a clock, and the virtual time they run in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from kvlib.clock import Clock
from kvlib.content import Content
from kvlib.load_test import Progress
from kvlib.plan import SequenceTooLong
from kvlib.request import Request
from kvlib.scheduled_step import Step
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest


class VirtualTime:
    """Time that passes by a clock's seconds for each step, and stands still otherwise.

    An engine runs in it with `clock=time.now, on_step=time.pass_step`.

    Args:
        clock: how long a step takes.
        stalls: moments at which the server stops, and for how many seconds: the first step that
            begins at that moment or later takes so much longer.

    Raises:
        ValueError: the stalls are not in order, or one has no length.

    Example:
        >>> class Second:
        ...     def seconds(self, step): return 1.0
        >>> time = VirtualTime(Second(), stalls=[(1.0, 10.0)])
        >>> for _ in range(3): time.pass_step(Step()); print(time.now())
        1.0
        12.0
        13.0
    """

    def __init__(self, clock: Clock, stalls: Sequence[tuple[float, float]] = ()) -> None:
        if list(stalls) != sorted(stalls) or any(not 0 < length < inf for _, length in stalls):
            raise ValueError(f"stalls are in order and longer than 0 s, got {list(stalls)}")
        self._clock, self._stalls, self._now = clock, list(stalls), 0.0

    def now(self) -> float:
        """Returns the time in seconds."""
        return self._now

    def pass_step(self, step: Step) -> None:
        """Passes the time of a step that was scheduled and not yet reported back."""
        seconds = self._clock.seconds(step)
        while self._stalls and self._stalls[0][0] <= self._now:
            seconds += self._stalls.pop(0)[1]
        self._now += seconds

    def wait_until(self, time_s: float) -> None:
        """Lets time pass to a moment; one that lies behind changes nothing."""
        self._now = max(self._now, time_s)


class SimulatedServer:
    """A scheduler as a server under load: memory and steps are counted, times are a clock's.

    `kvlib.serving.serve` comes to the same times for an open loop, and keeps no request's: it
    counts them in histograms, for traces of any length. Here each is kept, for percentiles that are
    exact and for users who wait.

    Args:
        scheduler: an idle one.
        clock: how long steps take.
        content: what a request's tokens are, for prefixes to be found.
        stalls: as those of `VirtualTime`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        *,
        content: Callable[[Request], Content | None] = lambda request: None,
        stalls: Sequence[tuple[float, float]] = (),
    ) -> None:
        self.scheduler, self.time, self._content = scheduler, VirtualTime(clock, stalls), content
        self.now, self.wait_until = self.time.now, self.time.wait_until

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return self.scheduler.has_work

    def send(self, request: Request) -> ServedRequest | None:
        """Takes a request into the line, or refuses one that could never be served."""
        try:
            return self.scheduler.add(request, self.now(), self._content(request))
        except SequenceTooLong:
            return None

    def step(self) -> list[ServedRequest]:
        """Runs one step of the scheduler; returns whom it gave a first token, or ended."""
        step = self.scheduler.schedule()
        self.time.pass_step(step)
        ended, now = self.scheduler.report(step, self.now()), self.now()
        began = [job for job, _ in step.work if job.first_token_s == now]
        return ended + [job for job in began if job.finished_s is None]

    def progress(self, ticket: ServedRequest) -> Progress:
        """Returns how far a request is."""
        ended = ticket.finished_s is not None
        return Progress(ticket.num_outputs, ended, ticket.num_preempted)
