"""First come, first served, step by step: the line that `kvlib.simulate` counts.

Only steps at which something happens are visited; what lies between is arithmetic on whole numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from kvlib.allocator import Allocator, Piece
from kvlib.paged_memory import PagedMemory, PagedPiece
from kvlib.plan import OutOfBlocks
from kvlib.waste import PARTS

COUNTS = (
    "finished",
    "unfinished",
    "turned_away",
    "preempted",
    "copied_tokens",
    "recomputed_tokens",
    "steps",
    "peak_running",
    "request_steps",
    "waiting_steps",
    "rounded_up",
)


@dataclass(slots=True)
class Job:
    """A request on its way; it has `made` tokens of its output before step `since`.

    Attributes:
        order: its place in the line.
        prompt: tokens it brings.
        final: tokens it holds in the end.
        asked: tokens of the piece it asks for next.
        since: the step at which it last came to wait, began to run or got another piece.
        arrived: the step it came at.
        made: tokens of its output made before `since`.
        piece: what it holds while it runs.
        begun: it has run before, so it is never turned away.
    """

    order: int
    prompt: int
    final: int
    asked: int
    since: int
    arrived: int
    made: int = 0
    piece: Piece | PagedPiece | None = None
    begun: bool = False

    @property
    def held(self) -> int:
        """Tokens at the start of step `since`."""
        return self.prompt + self.made

    def next_event(self) -> int:
        """Returns the step at whose start its piece is full, or it is done."""
        return self.since + min(self.piece.size, self.final) - self.held


class ServingLine:
    """Runs jobs through one memory, and counts.

    Args:
        allocator: an empty one, of contiguous pieces or of blocks.
        most: tokens that no piece may pass.
        patience: steps after which a waiting job is turned away; None: never.
    """

    def __init__(self, allocator: Allocator | PagedMemory, most: int, patience: int | None) -> None:
        self.outgrown: set[int] = set()
        self.stuck: set[int] = set()
        self.unit_steps = dict.fromkeys(PARTS, 0)
        self.counts = dict.fromkeys(COUNTS, 0)
        self._allocator, self._most, self._patience = allocator, most, patience
        self._coming: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._preempted: list[tuple[int, Job]] = []
        self._running: dict[int, Job] = {}
        self._events: list[tuple[int, int]] = []

    def serve(self, jobs: Iterable[Job], drain: bool) -> None:
        """Serves jobs in the order they are given.

        Args:
            jobs: by arrival.
            drain: until each is done or turned away; else only as long as somebody waits.
        """
        self._coming.extend(jobs)
        first = now = self._coming[0].arrived if self._coming else 0
        while True:
            self._leave_and_grow(now)
            while self._coming and self._coming[0].arrived == now:
                self._waiting.append(self._coming.popleft())
            self._admit(now)
            if not drain and not self._coming and not self._head():
                self._stop(now)
            self.counts["peak_running"] = max(self.counts["peak_running"], len(self._running))
            upcoming = self._upcoming()
            if not upcoming:
                break
            self._count_free(min(upcoming) - now)
            now = min(upcoming)
        self.counts["steps"] = now - first

    def _stop(self, now: int) -> None:
        """Counts what the running ones have held, and lets them go."""
        self._events.clear()
        for job in list(self._running.values()):
            self._settle(job, now)
            self._release(job)
            self.counts["unfinished"] += 1

    def _upcoming(self) -> list[int]:
        """The next step of each kind; with none of them nobody runs and nobody waits."""
        steps = [self._events[0][0]] if self._events else []
        if self._coming:
            steps.append(self._coming[0].arrived)
        if self._waiting and self._patience is not None:
            steps.append(self._waiting[0].arrived + self._patience)
        return steps

    def _leave_and_grow(self, now: int) -> None:
        """Those that are done leave before anybody grows."""
        due = []
        while self._events and self._events[0][0] == now:
            due.append(self._running[heappop(self._events)[1]])
        for job in due:
            self._settle(job, now)
            if job.held == job.final:
                self._release(job)
                self.counts["finished"] += 1
        for job in due:
            if job.held < job.final:
                self._grow(job)

    def _settle(self, job: Job, now: int) -> None:
        """Adds up what the job has held since it last changed place."""
        n, held, size = now - job.since, job.held, job.piece.size
        used, will_use = n * held + n * (n + 1) // 2, n * min(size, job.final)
        self.unit_steps["used"] += used
        self.unit_steps["reservation"] += will_use - used
        self.unit_steps["internal_fragmentation"] += n * size - will_use
        self.counts["request_steps"] += n
        self.counts["rounded_up"] += n * size - max(will_use, n * job.asked)
        job.made, job.since = job.made + n, now

    def _release(self, job: Job) -> None:
        self._allocator.free(job.piece)
        del self._running[job.order]

    def _grow(self, job: Job) -> None:
        self.outgrown.add(job.order)
        job.asked = min(self._allocator.grown(job.piece), self._most)
        try:
            piece = self._allocator.resize(job.piece, job.asked)
        except OutOfBlocks:
            self._release(job)
            heappush(self._preempted, (job.order, job))
            self.counts["preempted"] += 1
            self.counts["recomputed_tokens"] += job.held
            return
        if piece.start != job.piece.start:
            self.counts["copied_tokens"] += job.held
        job.piece = piece
        heappush(self._events, (job.next_event(), job.order))

    def _admit(self, now: int) -> None:
        while job := self._head():
            if self._allocator.can_allocate(job.asked):
                self._start(job, now)
                continue
            if self._allocator.num_free >= job.asked:
                self.stuck.add(job.order)
            if job.begun or not self._out_of_patience(job, now):
                break
            self._turn_away(now)
        # Behind a preempted request others may have waited long enough too.
        while self._waiting and self._out_of_patience(self._waiting[0], now):
            self._turn_away(now)

    def _head(self) -> Job | None:
        if self._preempted:
            return self._preempted[0][1]
        return self._waiting[0] if self._waiting else None

    def _out_of_patience(self, job: Job, now: int) -> bool:
        return self._patience is not None and now - job.arrived >= self._patience

    def _turn_away(self, now: int) -> None:
        self.counts["turned_away"] += 1
        self.counts["waiting_steps"] += now - self._waiting.popleft().arrived

    def _start(self, job: Job, now: int) -> None:
        heappop(self._preempted) if job.begun else self._waiting.popleft()
        self.counts["waiting_steps"] += now - job.since
        job.piece, job.since, job.begun = self._allocator.allocate(job.asked), now, True
        self._running[job.order] = job
        heappush(self._events, (job.next_event(), job.order))

    def _count_free(self, num_steps: int) -> None:
        job = self._head() or (self._coming[0] if self._coming else None)
        parts = self._allocator.split(next_size=job.asked if job else 1)
        self.unit_steps["external_fragmentation"] += num_steps * parts.external_fragmentation
        self.unit_steps["free"] += num_steps * parts.free
