"""Who runs in the next step: continuous batching over one memory.

A scheduler is bookkeeping. An engine asks it for a step, runs the model on it and reports back; a
simulator does the same against a clock. It knows lengths and memory, and no tensor.

Source: Yu et al., OSDI 2022 (iteration-level scheduling); Agrawal et al., OSDI 2024 (chunked
prefill); Kwon et al., SOSP 2023, §4.5 (preemption).
"""

from __future__ import annotations

from contextlib import ExitStack

from kvlib.admission import Admission, AdmitPrompt
from kvlib.content import Content
from kvlib.memory import Memory
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.preemption import SwapSpace, Victim, newest
from kvlib.request import Request
from kvlib.running_batch import RunningBatch
from kvlib.scheduled_step import Step, StepLimits
from kvlib.served import ServedRequest
from kvlib.sizes import whole_number
from kvlib.waiting import FirstComeLine, WaitingLine


class Scheduler:
    """Requests that wait and run, and the memory they run in.

    Args:
        memory: an empty one.
        limits: of one step.
        admission: who may begin.
        victim: who loses memory when a running request cannot grow.
        swap: where its tokens go; None computes them again.
        waiting: the line, empty.
        max_seq_len: the most tokens of one request; all of the memory by default.

    Raises:
        TypeError, ValueError: `max_seq_len` is not a whole number in `[1, memory.most]`.

    Example:
        Memory of 8 tokens. The second request waits until the first has left:

        >>> from kvlib.kv_memory import KVMemory
        >>> scheduler = Scheduler(KVMemory(num_blocks=4, block_size=2))
        >>> a = scheduler.add(Request(0, None, prompt_tokens=5, output_tokens=2))
        >>> b = scheduler.add(Request(1, None, prompt_tokens=3, output_tokens=1))
        >>> while scheduler.has_work:
        ...     step = scheduler.schedule()
        ...     print([(job.order, n) for job, n in step.work])
        ...     done = scheduler.report(step)
        [(0, 5)]
        [(0, 1)]
        [(1, 3)]
    """

    def __init__(
        self,
        memory: Memory,
        *,
        limits: StepLimits | None = None,
        admission: Admission | None = None,
        victim: Victim = newest,
        swap: SwapSpace | None = None,
        waiting: WaitingLine | None = None,
        max_seq_len: int | None = None,
    ) -> None:
        max_seq_len = memory.most if max_seq_len is None else max_seq_len
        whole_number("max_seq_len", max_seq_len)
        if max_seq_len > memory.most:
            raise ValueError(
                f"max_seq_len is {max_seq_len}, the memory holds {memory.most} tokens of a request"
            )
        self.memory, self.max_seq_len = memory, max_seq_len
        self.limits = limits or StepLimits()
        self.admission, self.victim = admission or AdmitPrompt(), victim
        self.waiting: WaitingLine = FirstComeLine() if waiting is None else waiting
        self.running = RunningBatch(memory, swap)
        self.waiting_tokens = self._num_arrived = 0
        self._open: Step | None = None

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return len(self.running) > 0 or len(self.waiting) > 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self.waiting)

    @property
    def num_running(self) -> int:
        """Requests that have memory."""
        return len(self.running)

    @property
    def load_tokens(self) -> int:
        """Tokens that running requests have room for, and tokens known of those that wait."""
        return self.running.room_tokens + self.waiting_tokens

    @property
    def recomputed_tokens(self) -> int:
        """Tokens computed again so far, since memory was taken away."""
        return self.running.recomputed_tokens

    def add(
        self, request: Request, now_s: float = 0.0, content: Content | None = None
    ) -> ServedRequest:
        """Takes a request into the line.

        Args:
            request: its `output_tokens` say when it will stop; no policy looks at them.
            now_s: the time.
            content: its tokens, in blocks of the memory's size; None shares nothing.

        Raises:
            SequenceTooLong: it could never be served, however empty the memory.
            TypeError, ValueError: a length is not a whole number of at least 1, or the content is
                in blocks of another size. In each case nothing changes.
        """
        job = ServedRequest.arrived(request, self._num_arrived, now_s, self.max_seq_len, content)
        asked = self.admission.room(job)
        if asked > self.memory.most:
            raise SequenceTooLong(
                f"request {request.request_id} asked for {asked} tokens, the memory holds"
                f" {self.memory.most} of one request"
            )
        self.limits.require_prompt(request)
        if content is not None:
            self.memory.cached_tokens(job)  # refused here, it stops nobody else later
        self._num_arrived += 1
        self.waiting.push(job)
        self.waiting_tokens += job.num_tokens
        return job

    def schedule(self) -> Step:
        """Chooses what the next step computes, and gives memory for it.

        Running requests come first, in the order they began; one that finds no memory takes it from
        the victim. Then waiting ones begin, unless somebody just lost memory. A step that is never
        reported back, since the model failed on it, is simply scheduled again.
        """
        self._open = step = Step()
        budget = self.limits.max_tokens
        if self.limits.prefill_first and self._begin(step, budget):
            return step
        budget = self._go_on(step, budget)
        if not step.num_preempted:
            self._begin(step, budget)
        return step

    def report(self, step: Step, now_s: float = 0.0) -> list[ServedRequest]:
        """Notes that a step was computed: every request with no token left gets a new one.

        Returns:
            The requests that ended with it, in the order they began.

        Raises:
            ValueError: it is not the step scheduled last, or was reported before. Nothing changes.
            Exception: what the memory or a policy raised. Who ended in the step has left; of those
                behind the one it failed for, nothing was computed.
        """
        if step is not self._open:
            raise ValueError("only the step that was scheduled last is reported, and only once")
        self._open = None
        counts_service, computed, done = self.waiting.counts_service, 0, []
        try:
            for job, n in step.work:
                if not job.room:
                    continue  # it was dropped since
                job.num_computed += n
                computed += n
                if made_one := job.num_computed == job.num_tokens:
                    job.num_tokens += 1
                    if job.first_token_s is None:
                        job.first_token_s = now_s
                    if job.num_tokens >= job.stop_at:
                        done.append(job)
                if counts_service:
                    self._count_service(job, n, made_one)
                if job.content is not None:
                    self.memory.index(job)
        finally:
            self.running.computed_tokens += computed
            if done:
                self._end(done, now_s)
        self.admission.stepped(self.running, step.num_preempted)
        return done

    def _end(self, done: list[ServedRequest], now_s: float) -> None:
        with ExitStack() as leaving:  # all of them, even where a policy that is told fails
            for job in reversed(done):
                job.finished_s = now_s
                leaving.callback(self.running.stop, job)

    def _count_service(self, job: ServedRequest, num_tokens: int, made_one: bool) -> None:
        outside = job.num_computed - job.request.prompt_tokens
        of_prompt = num_tokens - min(num_tokens, max(0, outside))
        if of_prompt:
            self.waiting.served(job, of_prompt)
        if made_one:
            self.waiting.served(job, 1, output=True)

    def drop(self, job: ServedRequest) -> None:
        """Takes a request out, wherever it is: it stopped by itself, or nobody wants it any more.

        Raises:
            ValueError: it neither waits nor runs.
        """
        if job in self.running:
            self.running.stop(job)
            return
        self.waiting.remove(job)
        self.waiting_tokens -= job.num_tokens
        self.running.forget(job)

    def check(self) -> None:
        """Proves that the sums kept agree with the requests, and what the memory can prove.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.waiting.check()
        self.running.check(self.waiting)
        assert not set(self.running) & set(self.waiting), "a request waits and runs"
        kept, right = self.waiting_tokens, sum(job.num_tokens for job in self.waiting)
        assert kept == right, f"waiting tokens: {kept} kept, {right} there are"

    def _go_on(self, step: Step, budget: int) -> int:
        """Adds the running requests' next tokens; returns what is left of the budget."""
        work = step.work
        for job in tuple(self.running):
            if not job.room:
                continue  # it has lost its memory in this step
            n = job.num_tokens - job.num_computed
            if n > budget:
                n = budget
            if n <= 0:
                break
            if job.num_computed + n > job.room:
                budget += self._grow(job, job.num_computed + n, step)
                if not job.room:
                    continue
            work.append((job, n))
            budget -= n
        return budget

    def _grow(self, job: ServedRequest, num_tokens: int, step: Step) -> int:
        """Makes room, if need be at others' cost; returns the tokens that they had in this step."""
        given_up = 0
        while job.room:
            try:
                self.running.grow(job, num_tokens)
                break
            except OutOfBlocks:
                victim = self.victim(self.running) if self.memory.grows else job
                given_up += self._preempt(victim, step)
        return given_up

    def _preempt(self, job: ServedRequest, step: Step) -> int:
        if job not in self.running:
            raise ValueError(f"a victim is one of the {len(self.running)} that run, not any other")
        given_up = sum(n for each, n in step.work if each is job)
        step.work[:] = [each for each in step.work if each[0] is not job]
        step.num_swapped += self.running.save(job)
        try:
            self.running.stop(job)
        finally:  # whatever a policy that is told of it does, nobody is lost
            self.waiting.push_front(job)
            self.waiting_tokens += job.num_tokens
            step.num_preempted += 1
        return given_up

    def _begin(self, step: Step, budget: int) -> bool:
        """Lets waiting requests begin; answers whether any did."""
        any_began = False
        while budget > 0 and len(self.running) < self.limits.max_running:
            job = self.waiting.head()
            if job is None:
                break
            if self.running and not self.admission.admits(job, self.memory, self.running):
                break
            to_compute = job.num_tokens - max(self.memory.cached_tokens(job), job.num_swapped)
            whole = to_compute <= budget or not step.work
            if not (self.limits.chunked_prefill or whole):
                break
            try:
                step.num_swapped += self.running.start(job, self.admission.room(job))
            except OutOfBlocks:
                break
            self.waiting.pop()
            self.waiting_tokens -= job.num_tokens
            n = job.num_tokens - job.num_computed
            n = min(n, budget) if self.limits.chunked_prefill else n
            step.work.append((job, n))
            budget -= n
            any_began = True
        return any_began
