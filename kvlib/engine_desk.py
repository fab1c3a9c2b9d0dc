"""An engine without its model: takes requests in, hands out their tokens, ends them.

All of it is bookkeeping, so it needs no tensor. `kvlib.tensors.engine.Engine` adds the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps

from kvlib.block_table import num_blocks_for
from kvlib.content import NO_EXTRAS, TokenContent
from kvlib.engine_refusals import EngineFull
from kvlib.engine_request import EngineRequest
from kvlib.plan import SequenceTooLong
from kvlib.preemption import SwapSpace
from kvlib.scheduled_memory import EngineMemory, Move
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.sizes import whole_number

Work = tuple[EngineRequest, int]  # so many of its tokens are computed


def one_at_a_time(step: Callable[..., object]) -> Callable[..., object]:
    """Refuses a step inside of a step, as of a listener that iterates over a request."""

    @wraps(step)
    def alone(self: RequestDesk) -> object:
        if self.stepping:
            raise RuntimeError("asked for a step while one runs; between steps is the time for it")
        try:
            self.stepping = True
            return step(self)
        finally:
            self.stepping = False

    return alone


class RequestDesk:
    """The requests of an engine, its scheduler, and the memory they run in.

    Args:
        num_blocks: blocks of the memory.
        block_size: tokens of each.
        context_len: tokens that the model is made for.
        max_seq_len: the most tokens of one request; None for what model and memory hold.
        prefix_caching: whether requests of one tenant share blocks where their texts begin alike.
        swap_tokens: host memory for the tokens of victims.
        max_waiting: requests that may wait; samples that begin behind their first are not counted.
        clock: seconds.
        policies: `limits`, `admission`, `victim` and `waiting` of the `Scheduler`.

    Raises:
        TypeError, ValueError: a number is not a whole number in its range.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        context_len: int,
        *,
        max_seq_len: int | None,
        prefix_caching: bool,
        swap_tokens: int,
        max_waiting: int,
        clock: Callable[[], float],
        **policies: object,
    ) -> None:
        whole_number("max_waiting", max_waiting)
        whole_number("swap_tokens", swap_tokens, least=0)
        self.memory = EngineMemory(num_blocks, block_size, prefix_caching=prefix_caching)
        most = min(context_len, self.memory.most)
        max_seq_len = most if max_seq_len is None else max_seq_len
        whole_number("max_seq_len", max_seq_len)
        if max_seq_len > most:
            raise ValueError(
                f"max_seq_len is {max_seq_len}, the model is made for {context_len} tokens and the"
                f" memory holds {self.memory.most}"
            )
        self.scheduler = Scheduler(
            self.memory,
            swap=SwapSpace(swap_tokens) if swap_tokens else None,
            max_seq_len=max_seq_len,
            **policies,
        )
        self.max_waiting, self.clock, self.num_requests = max_waiting, clock, 0
        self.live: dict[ServedRequest, EngineRequest] = {}
        self.stepping = False

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return self.scheduler.has_work

    def take(self, samples: Sequence[EngineRequest]) -> EngineRequest:
        """Takes the samples of one request: the first waits, the others begin where it has come to.

        Returns:
            The first.

        Raises:
            EngineFull: too many wait.
            SequenceTooLong: it could never be served. In both cases nothing changes.
        """
        first, limits, now_s = samples[0], self.scheduler.limits, self.clock()
        asked, most = len(first.prompt) + first.max_new_tokens, self.scheduler.max_seq_len
        if asked > most:
            size = self.memory.block_size
            raise SequenceTooLong(
                f"asked for {len(first.prompt)} prompt and {first.max_new_tokens} new tokens,"
                f" {num_blocks_for(asked, size)} blocks of {size};"
                f" a request has {most} tokens at most, {num_blocks_for(most, size)} blocks"
            )
        allowed = len(samples) == 1 or limits.chunked_prefill
        if not allowed and len(first.prompt) >= limits.max_tokens:
            raise SequenceTooLong(
                f"asked for samples behind a prompt of {len(first.prompt)} tokens, a step computes"
                f" {limits.max_tokens} and prompts are not cut into chunks"
            )
        if self.scheduler.num_waiting >= self.max_waiting:
            raise EngineFull(
                f"asked to wait behind {self.scheduler.num_waiting} requests, max_waiting is"
                f" {self.max_waiting}; {self.scheduler.num_running} run,"
                f" {self.memory.pool.num_free} of {self.memory.pool.num_blocks} blocks are free"
            )
        for each in samples:
            each.samples = tuple(samples)
        self._enter(first, now_s)
        return first

    def deliver(self, drawn: Iterable[EngineRequest], now_s: float) -> list[EngineRequest]:
        """Gives requests the tokens drawn in a step that is reported; returns those that end."""
        ended: list[EngineRequest] = []
        forks: list[EngineRequest] = []
        for request in drawn:
            if request.done:
                continue
            token = request.receive(now_s)
            if token in request.stop_tokens:
                ended += self.end(request, "stop", now_s=now_s)
            elif len(request.tokens) == request.max_new_tokens:
                ended += self.end(request, "length", now_s=now_s)
            elif request.job is None:
                forks.append(request)
            elif request.job.content is not None:
                request.job.content.append([token])
        for request in reversed(forks):  # each goes to the front of the line
            try:
                self._fork(request, now_s)
            except Exception as error:  # a rule of admission may ask more for it
                ended += self.end(request, "error", error, now_s)
        return ended

    def moved(self, move: Move, failed: Exception | None) -> list[EngineRequest]:
        """Notes that bytes of a request were copied, or that they could not be; then it ends."""
        request = self.live[move.job]
        if failed is not None:
            return self.end(request, "error", failed)
        if move.kind == "out":
            request.swapped(move.num_tokens)
        return []

    def end(
        self,
        request: EngineRequest,
        reason: str,
        error: Exception | None = None,
        now_s: float | None = None,
    ) -> list[EngineRequest]:
        """Ends a request now and frees all it holds; one that has ended stays.

        Returns:
            It, and its samples that have not begun.
        """
        gone = [] if request.done else [request]
        if gone and reason not in ("stop", "length"):
            gone += request.unborn
        if gone and now_s is None:
            now_s = self.clock()  # a clock may fail, and then nobody has ended
        for each in gone:
            each.finish_reason, each.error = reason, error
            each.finished_s = now_s
            if self.live.pop(each.job, None):
                if each.job.finished_s is None:
                    self.scheduler.drop(each.job)
                self.memory.forget(each.job)
        return gone

    def end_late(self, now_s: float) -> list[EngineRequest]:
        """Ends the requests whose deadline has come."""
        late = [each for each in self.live.values() if now_s >= each.deadline_s]
        return [gone for each in late for gone in self.end(each, "deadline", now_s=now_s)]

    def check(self) -> None:
        """Proves that every request of the scheduler is somebody's who still wants it.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.scheduler.check()
        jobs = {*self.scheduler.running, *self.scheduler.waiting}
        assert jobs == self.live.keys(), "a job without its request"
        assert all(each.job is job for job, each in self.live.items()), "a request of another job"
        assert not any(each.done for each in self.live.values()), "an ended request holds memory"
        assert jobs or not self.memory.num_held, "memory is held by nobody"

    def _enter(self, request: EngineRequest, now_s: float) -> None:
        asked, content = request.asked(self.num_requests), None
        if self.memory.prefixes is not None:
            extras = {"tenant": request.tenant} if request.tenant else NO_EXTRAS
            known = request.known(0, asked.prompt_tokens)
            content = TokenContent(known, self.memory.block_size, extras)
        request.job = self.scheduler.add(asked, now_s, content)
        self.live[request.job] = request
        self.num_requests += 1

    def _fork(self, request: EngineRequest, now_s: float) -> None:
        """Lets a sample that has its first token begin behind the prompt that another computed."""
        self._enter(request, now_s)
        request.started_s = request.samples[0].started_s
        self.memory.fork(request.samples[0].job, request.job, len(request.prompt))
        self.scheduler.waiting.remove(request.job)
        self.scheduler.waiting.push_front(request.job)
