"""Serves a workload on schedulers, against a clock or without one, and counts.

Without a clock a step is a step: memory, batch and hit results hold, times do not exist. With one,
arrivals and steps have their times, and latency is what the clock says it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf

from kvlib.clock import Clock
from kvlib.content import Content
from kvlib.plan import SequenceTooLong
from kvlib.request import Request
from kvlib.router import Router
from kvlib.scheduled_step import Step
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.serving_run import ServingRun, Target

ContentOf = Callable[[Request], "Content | None"]


def serve(
    requests: Iterable[Request],
    scheduler: Scheduler | Sequence[Scheduler],
    clock: Clock | None = None,
    *,
    content: ContentOf = lambda request: None,
    router: Router | None = None,
    target: Target | None = None,
    drain: bool = True,
    progress: Callable[[int], object] | None = None,
) -> ServingRun:
    """Serves requests until all have ended, and returns what was counted.

    Args:
        requests: in order of arrival. They are taken one by one, so that a long trace need not lie
            in memory; without a clock all of them arrive at once.
        scheduler: an idle one, or several of which `router` chooses one for each request.
        clock: how long steps take; None counts steps.
        content: what a request's tokens are, for prefixes to be found.
        router: chooses among several schedulers.
        target: the latency that a good request keeps.
        drain: False stops as soon as nobody waits or is still to come: the last ones would run in a
            memory that empties, and no average over the run would be one under load. They are
            counted as unfinished, and still hold their memory.
        progress: called now and then with the number of requests that have ended. A
            `KeyboardInterrupt`, from there or from a keyboard, ends the run: what was counted until
            then is returned, and says that it was stopped.

    Raises:
        ValueError: a scheduler has work already, there are several and no router, a target without
            a clock, a swap space with a clock that knows no bandwidth for it, or with a clock a
            request without a time or before the one before it.

    Example:
        Memory for eight tokens holds two requests of 3 + 2 to their end:

        >>> from kvlib.kv_memory import KVMemory
        >>> run = serve([Request(0, None, 3, 2), Request(1, None, 3, 2)],
        ...             Scheduler(KVMemory(num_blocks=8, block_size=1)))
        >>> run.finished, run.steps, run.peak_running
        (2, 2, 2)
    """
    schedulers = [scheduler] if isinstance(scheduler, Scheduler) else list(scheduler)
    if not schedulers or any(each.has_work for each in schedulers):
        raise ValueError("serving begins with schedulers that have nothing to do, one at least")
    if len(schedulers) > 1 and router is None:
        raise ValueError(f"{len(schedulers)} schedulers need a router to choose among them")
    if target is not None and clock is None:
        raise ValueError("without a clock there is no latency to compare with a target")
    if clock is not None and any(each.running.swap for each in schedulers):
        clock.seconds(Step(num_swapped=1))  # a clock that cannot say so now will not later
    loop = _Loop(schedulers, clock, content, router, ServingRun(target, clock is not None))
    try:
        loop.run(_in_order(requests, clock is not None), drain, progress)
    except KeyboardInterrupt:
        loop.result.stopped = True
    loop.finish()
    return loop.result


def _in_order(requests: Iterable[Request], timed: bool) -> Iterator[tuple[float, Request]]:
    last = 0.0
    for request in requests:
        if not timed:
            yield 0.0, request
            continue
        if request.arrival_s is None:
            raise ValueError(f"request {request.request_id} has no arrival time")
        if not last <= request.arrival_s < inf:
            raise ValueError(
                f"request {request.request_id} arrives at {request.arrival_s} s, after {last} s"
            )
        last = request.arrival_s
        yield last, request


class _Instance:
    """What a router may look at of a scheduler."""

    def __init__(self, scheduler: Scheduler, content: ContentOf) -> None:
        self._scheduler, self._content = scheduler, content

    def __getattr__(self, name: str) -> int:
        return getattr(self._scheduler, name)  # its counts: num_waiting, num_running, load_tokens

    def cached_tokens(self, request: Request) -> int:
        known = self._content(request)
        job = ServedRequest(request, 0, 0.0, 0, 0, known, num_tokens=request.prompt_tokens)
        return self._scheduler.memory.cached_tokens(job)


class _Loop:
    """Arrivals and ends of steps, the next one first."""

    def __init__(
        self,
        schedulers: list[Scheduler],
        clock: Clock | None,
        content: ContentOf,
        router: Router | None,
        result: ServingRun,
    ) -> None:
        self.result = result
        self._schedulers, self._clock = schedulers, clock
        self._content_of, self._router = content, router
        self._instances = [_Instance(each, self._content) for each in schedulers]
        self._known: tuple[Request, Content | None] | None = None
        self._ends: list[tuple[float, int, Step]] = []
        self._busy = [False] * len(schedulers)

    def run(
        self,
        arrivals: Iterator[tuple[float, Request]],
        drain: bool,
        progress: Callable[[int], object] | None,
    ) -> None:
        upcoming = next(arrivals, None)
        told = 0
        while upcoming or self._ends:
            now = upcoming[0] if upcoming else inf
            if self._ends and self._ends[0][0] < now:
                now, which, step = heappop(self._ends)
                self._end(which, step, now)
                if not (drain or upcoming or any(len(each.waiting) for each in self._schedulers)):
                    break
                self._begin(which, now)
            else:
                which = self._arrive(*upcoming)
                upcoming = next(arrivals, None)
                # Those that come at one moment are all in line before anybody begins.
                if upcoming is None or upcoming[0] > now or len(self._schedulers) > 1:
                    self._begin(which, now)
            if progress and self.result.finished - told >= 100:
                told = self.result.finished
                progress(told)
        if progress and self.result.finished > told:
            progress(self.result.finished)

    def finish(self) -> None:
        """Adds what only the schedulers know."""
        self.result.recomputed_tokens = sum(each.recomputed_tokens for each in self._schedulers)
        self.result.unfinished = sum(
            len(each.running) + len(each.waiting) for each in self._schedulers
        )

    def _arrive(self, now: float, request: Request) -> int:
        which = self._router.choose(request, self._instances) if self._router else 0
        self.result.num_requests += 1
        try:
            self._schedulers[which].add(request, now, self._content(request))
        except SequenceTooLong:
            self.result.refused += 1
        return which

    def _content(self, request: Request) -> Content | None:
        # One content for a request, however many instances are asked for it: keys are costly.
        if self._known is None or self._known[0] is not request:
            self._known = request, self._content_of(request)
        return self._known[1]

    def _begin(self, which: int, now: float) -> None:
        scheduler = self._schedulers[which]
        if self._busy[which] or not scheduler.has_work:
            return
        step = scheduler.schedule()
        seconds = self._clock.seconds(step) if self._clock else 1.0
        self.result.began(scheduler, step, seconds)
        self._busy[which] = True
        heappush(self._ends, (now + seconds, which, step))

    def _end(self, which: int, step: Step, now: float) -> None:
        self._busy[which] = False
        for job in self._schedulers[which].report(step, now):
            self.result.ended(job)
        self.result.now_s = now
