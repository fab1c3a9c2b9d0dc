"""Sends requests to a server on a schedule, and notes when each was due, sent and answered.

An *open loop* sends each request when it is due, whatever the server does. A *closed loop* has
users who wait for one answer before they ask again: a server that stalls then stalls the test, and
what should have been sent meanwhile is neither sent nor counted (coordinated omission). Both keep
the time at which each request was due, so that a closed loop can be read rightly too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple, Protocol

from kvlib.load_run import LoadRun, Timing
from kvlib.request import Request
from kvlib.sizes import whole_number


class Progress(NamedTuple):
    """How far a request is.

    Attributes:
        num_tokens: output tokens so far.
        ended: it has all it will get.
        num_preempted: how often it lost its memory.
        failed: it ended without all it asked for.
    """

    num_tokens: int
    ended: bool
    num_preempted: int = 0
    failed: bool = False


class Server(Protocol):
    """What a load test asks of a server."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""

    def now(self) -> float:
        """Returns the time in seconds."""

    def wait_until(self, time_s: float) -> None:
        """Lets time pass while there is nothing to do."""

    def send(self, request: Request) -> Any | None:
        """Takes a request in; returns a ticket, which can be hashed, or None if it is refused."""

    def step(self) -> Iterable[Any]:
        """Runs one step; returns the tickets that got a first token with it, or ended."""

    def progress(self, ticket: Any) -> Progress:
        """Returns how far the request of a ticket is."""


def load_test(
    server: Server, requests: Sequence[Request], users: int | None = None, think_s: float = 0.0
) -> LoadRun:
    """Sends requests to a server until all have ended, and notes their times.

    Args:
        server: with nothing to do.
        requests: in order of arrival. One without a time is due as soon as a user is free.
        users: at most so many requests are under way, and the next one waits for a user, not in
            the server's line; None sends each when it is due (an open loop).
        think_s: how long a user waits between an answer and the next request.

    Returns:
        The timings. A request is sent between two steps, so up to a step later than it was due, and
        much later where users are few. `Timing.ttft_s` counts from when it was due.

    Raises:
        ValueError: the server has work already, there are no requests, a time is missing in an open
            loop or before the one before it, or `think_s` is negative. Nothing is sent.
        TypeError: `users` is not a whole number.
        RuntimeError: the server has nothing left to do, and a request that it took never ended.

    Example:
        A server that makes one token a second. The second user waits for the first:

        >>> from kvlib.kv_memory import KVMemory
        >>> from kvlib.scheduler import Scheduler
        >>> from kvlib.simulated_server import SimulatedServer
        >>> class Second:
        ...     def seconds(self, step): return 1.0
        >>> rows = [Request(0, 0.0, 3, 2), Request(1, 0.5, 3, 1)]
        >>> server = SimulatedServer(Scheduler(KVMemory(8, 1)), Second())
        >>> [t.ttft_s for t in load_test(server, rows, users=1).timings]
        [1.0, 2.5]
    """
    if users is not None:
        whole_number("users", users)
    if server.has_work or not requests:
        raise ValueError("a load test begins with requests, and a server that has nothing to do")
    if not 0 <= think_s < inf:
        raise ValueError(f"think_s is at least 0, got {think_s!r}")
    due = [request.arrival_s for request in requests]
    if users is None and None in due:
        raise ValueError("an open loop needs a time for every request; see at_rate")
    times = [time for time in due if time is not None]
    if any(not 0 <= time < inf for time in times) or times != sorted(times):
        raise ValueError("arrival times are at least 0, each at least that before it")
    return _Test(server, requests, users, think_s).run()


class _Test:
    """One run: who may send when, and who is under way."""

    def __init__(
        self, server: Server, requests: Sequence[Request], users: int | None, think_s: float
    ) -> None:
        self._server, self._requests, self._think_s = server, requests, think_s
        self._began = server.now()
        # When each user who is not waiting for an answer will send again; None: there is no limit.
        self._free = None if users is None else [self._began] * users
        self._timings: list[Timing] = []
        self._open: dict[Any, int] = {}  # tickets, and their places in `_timings`
        self._num_due = 0

    def run(self) -> LoadRun:
        server, counts = self._server, []
        while len(self._timings) < len(self._requests) or server.has_work:
            while (next_s := self._next_s()) <= server.now():
                self._send(self._requests[len(self._timings)], next_s)
            in_system = self._due_by(server.now()) - (len(self._timings) - len(self._open))
            if server.has_work:
                self._note(server.step())
            elif next_s < inf:
                server.wait_until(next_s)
            if self._open and not server.has_work:
                raise RuntimeError(
                    f"the server has nothing to do, and {len(self._open)} requests never ended"
                )
            counts.append((server.now(), in_system))
        return LoadRun(tuple(self._timings), self._began, server.now(), tuple(counts))

    def _next_s(self) -> float:
        """When the next request will be sent; infinity: none is left, or no user is free."""
        if len(self._timings) == len(self._requests) or self._free == []:
            return inf
        due_s = self._requests[len(self._timings)].arrival_s or 0.0
        return max(self._began + due_s, self._free[0] if self._free else -inf)

    def _due_by(self, now: float) -> int:
        """Counts the requests whose time has come; one without a time is due when it is sent."""
        while self._num_due < len(self._requests):
            due_s = self._requests[self._num_due].arrival_s
            if due_s is None or self._began + due_s > now:
                break
            self._num_due += 1
        self._num_due = max(self._num_due, len(self._timings))
        return self._num_due

    def _send(self, request: Request, may_s: float) -> None:
        due_s = may_s if request.arrival_s is None else self._began + request.arrival_s
        ticket = self._server.send(request)
        timing = Timing(request.request_id, due_s, self._server.now(), refused=ticket is None)
        self._timings.append(timing)
        if self._free is not None:
            heappop(self._free)
        if ticket is not None:
            self._open[ticket] = len(self._timings) - 1
        else:
            self._release()

    def _note(self, tickets: Iterable[Any]) -> None:
        """Notes who got a first token in the step, and who has ended with it."""
        now = self._server.now()
        for ticket in tickets:
            seen, place = self._server.progress(ticket), self._open[ticket]
            timing = self._timings[place]
            if seen.num_tokens and timing.first_token_s == inf:
                timing = self._timings[place] = replace(timing, first_token_s=now)
            if not seen.ended:
                continue
            self._timings[place] = replace(
                timing,
                finished_s=inf if seen.failed else now,
                output_tokens=seen.num_tokens,
                num_preempted=seen.num_preempted,
            )
            del self._open[ticket]
            self._release()

    def _release(self) -> None:
        if self._free is not None:
            heappush(self._free, self._server.now() + self._think_s)
