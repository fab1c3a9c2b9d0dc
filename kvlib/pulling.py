"""Instances of two pools, and how the keys and values of prompts get from the one to the other.

A receiver takes memory first, in the order in which the prompts were ready, and pulls then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvlib.clock import Clock
from kvlib.disaggregated_run import DisaggregatedRun
from kvlib.plan import OutOfBlocks
from kvlib.request import Request
from kvlib.scheduled_step import Step
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.serving import ContentOf


class Instance:
    """One scheduler with its clock, and what a router may look at of it."""

    def __init__(self, scheduler: Scheduler, clock: Clock, content: ContentOf, pool: str) -> None:
        self.scheduler, self.clock, self.content, self.pool = scheduler, clock, content, pool
        self.step: Step | None = None
        self.step_ends_s = 0.0
        self.alive = True
        self.link_free_s = 0.0
        self.placeless: deque[ServedRequest] = deque()  # to be pulled, when there is memory

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those under way to it included."""
        return self.scheduler.num_waiting

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return self.scheduler.num_running

    @property
    def load_tokens(self) -> int:
        """Tokens held and waiting, those under way to it included."""
        return self.scheduler.load_tokens

    def cached_tokens(self, request: Request) -> int:
        """Returns how many of the request's prompt tokens lie in its cache."""
        known = self.content(request)
        job = ServedRequest(request, 0, 0.0, 0, 0, known, num_tokens=request.prompt_tokens)
        return self.scheduler.memory.cached_tokens(job)


@dataclass(eq=False, slots=True)
class Life:
    """A request, through all instances that serve it.

    Attributes:
        order: of arrival.
        request: as it was asked.
        arrived_s: when.
        num_outputs: tokens that it will get.
        first_token_s: when the first of them was there, if it was.
        num_cached: prompt tokens that were found where it was computed first.
        computed: where its prompt lies until it was sent: the instance, and the request there.
        receiver: where it will be decoded.
        prefilled_s: when its prompt was last computed.
    """

    order: int
    request: Request
    arrived_s: float
    num_outputs: int
    first_token_s: float | None = None
    num_cached: int = 0
    computed: tuple[Instance, ServedRequest] | None = None
    receiver: Instance | None = None
    prefilled_s: float = 0.0


class Puller:
    """Takes memory at receivers for prompts that are ready, and has them sent.

    Args:
        lives: of every request under way, by what serves it; handovers are added and taken out.
        transfer: for a number of tokens, their bytes and the seconds they take.
        at: has something called at a time.
        result: counts are added to it.
    """

    def __init__(
        self,
        lives: dict[ServedRequest, Life],
        transfer: Callable[[int], tuple[int, float]],
        at: Callable[[float, Callable[[float], None]], None],
        result: DisaggregatedRun,
    ) -> None:
        self._lives, self._transfer, self._at, self._result = lives, transfer, at, result

    def expect(self, life: Life, receiver: Instance, rest: Request, now: float) -> None:
        """Puts what is left of a request in line at its receiver, where it waits for memory."""
        job = receiver.scheduler.add(rest, now)
        receiver.scheduler.waiting.expect(job)
        receiver.placeless.append(job)
        life.receiver, self._lives[job] = receiver, life

    def pull(self, receiver: Instance, now: float) -> None:
        """Takes memory for prompts that wait to come, in order, and sends them on their way."""
        scheduler, memory = receiver.scheduler, receiver.scheduler.memory
        while receiver.placeless and not scheduler.waiting.num_to_compute:
            job = receiver.placeless[0]
            beside = [*scheduler.running, *memory.coming]
            if len(beside) >= scheduler.limits.max_running:
                break
            if beside and not scheduler.admission.admits(job, memory, beside):
                break
            try:
                memory.reserve(job, scheduler.admission.room(job))
            except OutOfBlocks:
                break
            receiver.placeless.popleft()
            self._send(job, receiver, now)

    def lose(self, lost: Instance) -> list[Life]:
        """Gives up every handover whose sender was lost, and returns whose they were."""
        held = [
            (job, life)
            for job, life in self._lives.items()
            if life.computed is not None and life.computed[0] is lost
        ]
        for job, life in held:
            self._cancel(job, life)
        return [life for _, life in held]

    def _send(self, job: ServedRequest, receiver: Instance, now: float) -> None:
        sender, _ = self._lives[job].computed
        num_bytes, seconds = self._transfer(job.request.prompt_tokens - 1)
        end = max(now, sender.link_free_s, receiver.link_free_s) + seconds
        sender.link_free_s = receiver.link_free_s = end
        self._at(end, lambda end: self._arrived(job, num_bytes, seconds, end))

    def _arrived(self, job: ServedRequest, num_bytes: int, seconds: float, now: float) -> None:
        life = self._lives.get(job)
        if life is None:
            return  # its sender was lost on the way
        sender, held = life.computed
        sender.scheduler.memory.sent(held)
        life.computed = None
        life.receiver.scheduler.memory.arrived(job)
        life.receiver.scheduler.waiting.ready(job)
        self._result.sent += 1
        self._result.bytes_sent += num_bytes
        self._result.link_s += seconds
        self._result.handover_s.add(now - life.prefilled_s)

    def _cancel(self, job: ServedRequest, life: Life) -> None:
        """Gives back its place, or its place in line, and what the sender held."""
        receiver, (sender, held) = life.receiver, life.computed
        if job in receiver.placeless:
            receiver.placeless.remove(job)
        receiver.scheduler.drop(job)
        sender.scheduler.memory.sent(held)
        life.computed = None
        del self._lives[job]
