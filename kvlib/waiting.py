"""Who is served next: the requests that wait, first come or by priority.

A line knows nothing of memory: the scheduler asks for its `head`, tries to give it room, and takes
it out with `pop` once that worked. `kvlib.fair_line` shares between tenants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol

from kvlib.request import Request
from kvlib.sizes import whole_number


class Job(Protocol):
    """What a line asks of whatever waits in it; a job waits at most once at a time."""

    order: int  # its place among all arrivals; no two jobs have the same
    request: Request


class WaitingLine(Protocol):
    """What a scheduler asks of a line; iterating gives everyone who waits, the head first."""

    counts_service: bool  # whether `served` does anything; if not, the scheduler may skip it

    def push(self, job: Job) -> None:
        """Takes a request that has arrived."""

    def push_front(self, job: Job) -> None:
        """Takes back a request that was preempted."""

    def head(self) -> Job | None:
        """Returns who is next, `None` if nobody waits; nobody leaves."""

    def pop(self) -> Job:
        """Takes the head out and returns it; `IndexError` if nobody waits."""

    def remove(self, job: Job) -> None:
        """Takes out a job that gives up, wherever it stands; `ValueError` if it does not wait."""

    def served(self, job: Job, num_tokens: int, output: bool = False) -> None:
        """Notes work done for a job that has left the line: see `kvlib.fair_line.FairLine`."""

    def check(self) -> None:
        """Proves the line's invariants; raises `AssertionError` with the broken one's name."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...


class FirstComeLine:
    """First come, first served; a preempted request goes back to the very front.

    `remove` looks through the line; every other call takes the same time however many wait.

    Example:
        >>> from types import SimpleNamespace as Job
        >>> line = FirstComeLine()
        >>> for order in range(3): line.push(Job(order=order))
        >>> preempted = line.pop(); line.push_front(preempted)
        >>> [job.order for job in line]
        [0, 1, 2]
    """

    counts_service = False

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def push(self, job: Job) -> None:
        """Takes a request that has arrived, behind all others."""
        self._jobs.append(job)

    def push_front(self, job: Job) -> None:
        """Takes back a request that was preempted, before all others."""
        self._jobs.appendleft(job)

    def head(self) -> Job | None:
        """Returns who is next, `None` if nobody waits; nobody leaves."""
        return self._jobs[0] if self._jobs else None

    def pop(self) -> Job:
        """Takes the head out and returns it; `IndexError` if nobody waits."""
        if not self._jobs:
            raise IndexError("asked for 1 request, 0 wait")
        return self._jobs.popleft()

    def remove(self, job: Job) -> None:
        """Takes out a job that gives up; `ValueError`, and no change, if it does not wait here."""
        del self._jobs[_place(job, self, len(self))]

    def served(self, job: Job, num_tokens: int, output: bool = False) -> None:
        """Does nothing: who is next does not depend on who was served."""

    def check(self) -> None:
        """Proves that everybody stands in line once.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        jobs = [*self]
        assert len({id(job) for job in jobs}) == len(jobs), f"one of {len(jobs)} waits twice"
        assert len(jobs) == len(self), f"{len(jobs)} stand in line, {len(self)} are counted"


class PriorityLine(FirstComeLine):
    """The lowest `priority` first, among equals the first to arrive; a preempted one keeps both.

    `push` and `pop` take time that grows with the logarithm of how many wait. While requests of a
    low number keep coming, one of a high number may wait for ever.

    Example:
        >>> from types import SimpleNamespace as Job
        >>> line = PriorityLine()
        >>> for order, priority in enumerate([1, 0, 1]):
        ...     line.push(Job(order=order, request=Job(priority=priority)))
        >>> [line.pop().order for _ in range(3)]
        [1, 0, 2]
    """

    def __init__(self) -> None:
        self._jobs: list[tuple[int, int, Job]] = []

    def __iter__(self) -> Iterator[Job]:
        return (job for _, _, job in sorted(self._jobs))

    def push(self, job: Job) -> None:
        """Takes a request, at the place that its priority and its arrival give it.

        Raises:
            TypeError: the priority is no whole number. Nothing changes.
        """
        whole_number("priority", job.request.priority, least=-inf)
        heappush(self._jobs, (job.request.priority, job.order, job))

    push_front = push

    def head(self) -> Job | None:
        """Returns who is next, `None` if nobody waits; nobody leaves."""
        return self._jobs[0][2] if self._jobs else None

    def pop(self) -> Job:
        """Takes the head out and returns it; raises as `FirstComeLine.pop`."""
        if not self._jobs:
            raise IndexError("asked for 1 request, 0 wait")
        return heappop(self._jobs)[2]

    def remove(self, job: Job) -> None:
        """Takes out a job that gives up; raises as `FirstComeLine.remove`."""
        del self._jobs[_place(job, (waiting for _, _, waiting in self._jobs), len(self))]
        heapify(self._jobs)

    def check(self) -> None:
        """Proves that everybody stands in line once, and that the heap is one.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        places = [entry[:2] for entry in self._jobs]
        for child in range(1, len(places)):
            above = places[(child - 1) // 2]
            assert above < places[child], f"{above} stands above {places[child]} in the heap"


def _place(job: Job, jobs: Iterable[Job], num_jobs: int) -> int:
    for place, waiting in enumerate(jobs):
        if waiting is job:
            return place
    raise ValueError(f"request {job.order} does not wait here, among {num_jobs} that do")
