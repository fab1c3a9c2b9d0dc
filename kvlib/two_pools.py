"""The loop behind `kvlib.disaggregation`: arrivals, ends of steps, ends of transfers, losses.

Whatever happens at one moment has happened before anybody takes memory or begins a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from math import inf

from kvlib.disaggregated_run import DisaggregatedRun
from kvlib.plan import SequenceTooLong
from kvlib.pulling import Instance, Life, Puller
from kvlib.request import Request
from kvlib.router import Router
from kvlib.scheduled_step import Step
from kvlib.served import ServedRequest


class TwoPools:
    """Runs requests through both pools.

    Args:
        prefill: instances that compute prompts.
        decode: instances that decode.
        routers: of the two pools.
        transfer: for a number of tokens, their bytes and the seconds they take.
        result: counts are added to it.
    """

    def __init__(
        self,
        prefill: Sequence[Instance],
        decode: Sequence[Instance],
        routers: tuple[Router, Router],
        transfer: Callable[[int], tuple[int, float]],
        result: DisaggregatedRun,
    ) -> None:
        self.prefill, self.decode, self.result = prefill, decode, result
        self._routers = routers
        self._lives: dict[ServedRequest, Life] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._puller = Puller(self._lives, transfer, self._at, result)

    def run(self, requests: Iterable[Request], losses: Sequence[tuple[float, int]]) -> None:
        """Serves all requests to their end; `ValueError` if one has no time, or an early one."""
        for at, which in losses:
            self._at(at, lambda now, lost=self.prefill[which]: self._lose(lost, now))
        self._upcoming(iter(requests), 0.0)
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] <= now:
                heappop(self._events)[2](now)
            for instance in self.decode:
                self._puller.pull(instance, now)
            if self._events and self._events[0][0] <= now:
                continue  # a transfer that took no time
            for instance in (*self.prefill, *self.decode):
                self._begin(instance, now)
        schedulers = [each.scheduler for each in (*self.prefill, *self.decode)]
        self.result.recomputed_tokens += sum(each.recomputed_tokens for each in schedulers)
        self.result.unfinished = len(self._lives)

    def check(self) -> None:
        """Proves each instance's books, and that every request under way is in one place.

        What senders keep is what is still to be sent, and whoever has a place waits for it.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        jobs: list[ServedRequest] = []
        for instance in (*self.prefill, *self.decode):
            instance.scheduler.check()
            jobs += [*instance.scheduler.running, *instance.scheduler.waiting]
        assert len(set(jobs)) == len(jobs), "a request is at two instances"
        assert set(jobs) == self._lives.keys(), f"{len(jobs)} at instances, {len(self._lives)} live"
        kept = {job for each in self.prefill for job in each.scheduler.memory.ended}
        due = {life.computed[1] for life in self._lives.values() if life.computed is not None}
        assert kept == due, f"{len(kept)} prompts are kept, {len(due)} are to be sent"
        for receiver in self.decode:
            coming, placeless = set(receiver.scheduler.memory.coming), set(receiver.placeless)
            assert not coming & placeless, "a request has a place and waits for one"
            assert coming | placeless <= set(receiver.scheduler.waiting), "a place for nobody"

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        heappush(self._events, (when, next(self._order), what))

    def _upcoming(self, rows: Iterator[Request], last: float) -> None:
        request = next(rows, None)
        if request is None:
            return
        at = request.arrival_s
        if at is None or not last <= at < inf:
            raise ValueError(
                f"request {request.request_id} arrives at {at} s, the one before it at {last} s"
            )

        def arrive(now: float) -> None:
            self._arrive(request, now)
            self._upcoming(rows, now)

        self._at(at, arrive)

    def _arrive(self, request: Request, now: float) -> None:
        self.result.num_requests += 1
        try:
            for each in self.decode:  # any of them may have to compute it alone, to its end
                scheduler = each.scheduler
                scheduler.drop(scheduler.add(request, now))
                most = (request.output_tokens, scheduler.max_seq_len - request.prompt_tokens)
                outputs = min(*most, request.max_new_tokens or inf)
                if outputs > 1:
                    scheduler.drop(scheduler.add(_rest(request), now))
            self._compute(Life(next(self._order), request, now, outputs), now)
        except SequenceTooLong:
            self.result.refused += 1

    def _compute(self, life: Life, now: float) -> None:
        """Sends a request to have its prompt computed; without a prefill instance, to be served."""
        if alive := [each for each in self.prefill if each.alive]:
            instance = alive[self._routers[0].choose(life.request, alive)]
            only_prompt = replace(life.request, output_tokens=1, max_new_tokens=1)
            content = instance.content(life.request)
            self._lives[instance.scheduler.add(only_prompt, now, content)] = life
        else:
            self._serve_whole(life, now)

    def _serve_whole(self, life: Life, now: float) -> None:
        """Sends a request to an instance that decodes, to have its prompt computed there, too."""
        instance = self.decode[self._routers[1].choose(life.request, self.decode)]
        self._lives[instance.scheduler.add(life.request, now)] = life

    def _begin(self, instance: Instance, now: float) -> None:
        scheduler = instance.scheduler
        if instance.step is not None or not scheduler.has_work:
            return
        step = scheduler.schedule()
        if not (step.work or step.num_preempted):
            return  # those in line wait for memory that is being sent, or for what is sent to them
        seconds = instance.clock.seconds(step)
        instance.step, instance.step_ends_s = step, now + seconds
        self.result.began(scheduler, step, seconds)
        if instance.pool == "prefill":
            self.result.prefill_busy_s += seconds
        else:
            self.result.decode_busy_s += seconds
        self._at(now + seconds, lambda end: self._end(instance, step, end))

    def _end(self, instance: Instance, step: Step, now: float) -> None:
        if not instance.alive:
            return
        instance.step = None
        self.result.now_s = now
        for job in instance.scheduler.report(step, now):
            life = self._lives.pop(job)
            if life.first_token_s is None:
                life.num_cached = job.num_cached_first
            if instance.pool == "decode":
                self._leave(life, job.first_token_s, now)
            elif life.num_outputs == 1:
                instance.scheduler.memory.sent(job)
                self._leave(life, now, now)
            else:
                life.first_token_s = now if life.first_token_s is None else life.first_token_s
                life.computed, life.prefilled_s = (instance, job), now
                receiver = self.decode[self._routers[1].choose(life.request, self.decode)]
                self._puller.expect(life, receiver, _rest(life.request), now)

    def _leave(self, life: Life, first_token_s: float, now: float) -> None:
        request = life.request
        whole = ServedRequest(request, life.order, life.arrived_s, 0, 0)
        whole.num_tokens = request.prompt_tokens + life.num_outputs
        whole.num_cached_first, whole.finished_s = life.num_cached, now
        whole.first_token_s = first_token_s if life.first_token_s is None else life.first_token_s
        self.result.ended(whole)

    def _lose(self, lost: Instance, now: float) -> None:
        """Takes a prefill instance away; what it had not handed over is computed again."""
        lost.alive = False
        if lost.step is not None:
            self.result.prefill_busy_s -= lost.step_ends_s - now  # it was counted to its end
            lost.step = None
        again = self._puller.lose(lost)
        self.result.recomputed_tokens += sum(life.request.prompt_tokens for life in again)
        for job in (*lost.scheduler.running, *lost.scheduler.waiting):
            self.result.recomputed_tokens += job.num_computed
            lost.scheduler.drop(job)
            again.append(self._lives.pop(job))
        self.result.lost += len(again)
        for life in sorted(again, key=lambda each: each.order):
            try:
                self._compute(life, now)
            except SequenceTooLong:  # where it was computed first there was more room
                self._serve_whole(life, now)


def _rest(request: Request) -> Request:
    """Returns what a decode instance is asked for: the first token has joined the prompt."""
    most = request.max_new_tokens
    return replace(
        request,
        prompt_tokens=request.prompt_tokens + 1,
        output_tokens=request.output_tokens - 1,
        max_new_tokens=None if most is None else most - 1,
    )
