"""Who runs in the next step: continuous batching over one memory.

A scheduler is bookkeeping. An engine asks it for a step, runs the model on it and reports back; a
simulator does the same against a clock. It knows lengths and memory, and no tensor.

Source: Yu et al., OSDI 2022 (iteration-level scheduling); Agrawal et al., OSDI 2024 (chunked
prefill); Kwon et al., SOSP 2023, §4.5 (preemption).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from kvlib.admission import Admission, AdmitPrompt
from kvlib.content import Content
from kvlib.kv_memory import Memory
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.preemption import SwapSpace, Victim, newest
from kvlib.request import Request
from kvlib.served import ServedRequest
from kvlib.sizes import whole_number
from kvlib.waiting import FirstComeLine, WaitingLine


@dataclass(frozen=True)
class StepLimits:
    """How much one step may hold.

    Attributes:
        max_tokens: tokens computed.
        max_running: requests that run at a time.
        chunked_prefill: a prompt may be spread over several steps; else it is computed whole, and
            one longer than `max_tokens` is refused. A preempted request that has grown beyond it
            is then computed again in a step of its own: the one step that may hold more.
        prefill_first: while a waiting request may begin, a step computes prompts only.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1.
    """

    max_tokens: int = 8192
    max_running: int = 256
    chunked_prefill: bool = True
    prefill_first: bool = False

    def __post_init__(self) -> None:
        whole_number("max_tokens", self.max_tokens)
        whole_number("max_running", self.max_running)


@dataclass(slots=True)
class Step:
    """What one step computes.

    Attributes:
        work: requests, each with how many of its tokens are computed.
        num_preempted: requests that lost their memory for it.
        num_swapped: tokens that move between device and host.
    """

    work: list[tuple[ServedRequest, int]] = field(default_factory=list)
    num_preempted: int = 0
    num_swapped: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return sum([n for _, n in self.work])  # a list, for it is asked every step

    def attention(self) -> tuple[int, int]:
        """Returns the keys read, each request's once, and the query-key pairs scored.

        To be asked before the step is reported back.
        """
        keys = pairs = 0
        for job, n in self.work:
            end = job.num_computed + n
            keys += end
            pairs += end if n == 1 else n * end - n * (n - 1) // 2
        return keys, pairs


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
        self.admission = admission or AdmitPrompt()
        self.waiting: WaitingLine = FirstComeLine() if waiting is None else waiting
        self.running: list[ServedRequest] = []
        self.swap = swap
        self.recomputed_tokens = 0
        self.victim = victim
        self._num_arrived = 0
        self._open: Step | None = None
        self.room_tokens = self.computed_tokens = self.needed_tokens = self.waiting_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self.running) or len(self.waiting) > 0

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
        return self.room_tokens + self.waiting_tokens

    def add(
        self, request: Request, now_s: float = 0.0, content: Content | None = None
    ) -> ServedRequest:
        """Takes a request into the line.

        Args:
            request: its `output_tokens` say when it will stop; no policy looks at them.
            now_s: the time.
            content: its tokens, in blocks of the memory's size; None shares nothing.

        Raises:
            SequenceTooLong: it could never be served, however empty the memory: the error has the
                numbers.
            TypeError, ValueError: a length is not a whole number of at least 1, or the content is
                in blocks of another size. In each case nothing changes.
        """
        whole_number("prompt_tokens", request.prompt_tokens)
        whole_number("output_tokens", request.output_tokens)
        limit = self._limit(request)
        stop_at = min(request.prompt_tokens + request.output_tokens, limit)
        job = ServedRequest(request, self._num_arrived, now_s, limit, stop_at, content)
        job.num_tokens = request.prompt_tokens
        asked = self.admission.room(job)
        if asked > self.memory.most:
            raise SequenceTooLong(
                f"request {request.request_id} asked for {asked} tokens, the memory holds"
                f" {self.memory.most} of one request"
            )
        if not self.limits.chunked_prefill and request.prompt_tokens > self.limits.max_tokens:
            raise SequenceTooLong(
                f"request {request.request_id} has a prompt of {request.prompt_tokens} tokens, a"
                f" step computes {self.limits.max_tokens} and prompts are not cut into chunks"
            )
        if content is not None:
            self.memory.cached_tokens(job)  # refused here, it stops nobody else later
        self._num_arrived += 1
        self.waiting.push(job)
        self.waiting_tokens += job.num_tokens
        return job

    def _limit(self, request: Request) -> int:
        if request.prompt_tokens >= self.max_seq_len:
            raise SequenceTooLong(
                f"request {request.request_id} has a prompt of {request.prompt_tokens} tokens,"
                f" max_seq_len {self.max_seq_len} leaves no room for an answer"
            )
        if request.max_new_tokens is None:
            return self.max_seq_len
        whole_number("max_new_tokens", request.max_new_tokens)
        return min(request.prompt_tokens + request.max_new_tokens, self.max_seq_len)

    def schedule(self) -> Step:
        """Chooses what the next step computes, and gives memory for it.

        Running requests come first, in the order they began; one that finds no memory takes it from
        the victim. Then waiting ones begin, unless somebody just lost memory.

        A step that is never reported back, since the model failed on it, is simply scheduled again.
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
            self.computed_tokens += computed
            if done:
                self._end(done, now_s)
        self.admission.stepped(self.running, step.num_preempted)
        return done

    def _end(self, done: list[ServedRequest], now_s: float) -> None:
        with ExitStack() as leaving:  # all of them, even where a policy that is told fails
            for job in reversed(done):
                job.finished_s = now_s
                leaving.callback(self._leave, job)

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
            self._leave(job)
            return
        self.waiting.remove(job)
        self.waiting_tokens -= job.num_tokens
        self._end_swap(job)

    def check(self) -> None:
        """Proves that the sums kept agree with the requests, and what the memory can prove.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.memory.check()
        running = self.running
        self.waiting.check()
        assert len(set(running)) == len(running), "a request runs twice"
        assert not set(running) & set(self.waiting), "a request waits and runs"
        sums = (
            ("room miscounted", self.room_tokens, (job.room for job in running)),
            ("computed miscounted", self.computed_tokens, (job.num_computed for job in running)),
            ("needed", self.needed_tokens, (min(job.room, job.stop_at) for job in running)),
            ("waiting tokens", self.waiting_tokens, (job.num_tokens for job in self.waiting)),
        )
        for name, kept, tokens in sums:
            right = sum(tokens)
            assert kept == right, f"{name}: {kept} kept, {right} there are"
        assert all(job.room for job in running), "a request runs without room"
        if self.swap:
            self.swap.check()
            swapped = sum(job.num_swapped for job in self.waiting)
            taken = self.swap.num_tokens - self.swap.num_free
            assert swapped == taken, (
                f"swap space miscounted: {swapped} tokens wait in it, {taken} were taken in"
            )

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
        before = job.room, min(job.room, job.stop_at)
        while job.room:
            try:
                self.memory.grow(job, num_tokens)
            except OutOfBlocks:
                victim = self.victim(self.running) if self.memory.grows else job
                given_up += self._preempt(victim, step)
                continue
            self.room_tokens += job.room - before[0]
            self.needed_tokens += min(job.room, job.stop_at) - before[1]
            break
        return given_up

    def _preempt(self, job: ServedRequest, step: Step) -> int:
        if job not in self.running:
            raise ValueError(f"a victim is one of the {len(self.running)} that run, not any other")
        given_up = sum(n for each, n in step.work if each is job)
        step.work[:] = [each for each in step.work if each[0] is not job]
        job.num_preempted += 1
        if self.swap and self.swap.take(job.num_computed):
            job.num_swapped, job.num_lost = job.num_computed, 0
            step.num_swapped += job.num_swapped
        else:
            job.num_lost = job.num_computed
        try:
            self._leave(job)
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
            if job is None or not self._admits(job):
                break
            to_compute = job.num_tokens - max(self.memory.cached_tokens(job), job.num_swapped)
            whole = to_compute <= budget or not step.work
            if not (self.limits.chunked_prefill or whole):
                break
            try:
                self.memory.start(job, self.admission.room(job))
            except OutOfBlocks:
                break
            self.waiting.pop()
            self.waiting_tokens -= job.num_tokens
            self._enter(job, step)
            n = job.num_tokens - job.num_computed
            n = min(n, budget) if self.limits.chunked_prefill else n
            step.work.append((job, n))
            budget -= n
            any_began = True
        return any_began

    def _admits(self, job: ServedRequest) -> bool:
        return not self.running or self.admission.admits(job, self.memory, self.running)

    def _enter(self, job: ServedRequest, step: Step) -> None:
        """Notes a request that has just been given memory."""
        job.num_started += 1
        if job.num_started == 1:
            job.num_cached_first = job.num_cached
        if job.num_swapped:
            step.num_swapped += job.num_swapped
            job.num_computed = max(job.num_computed, job.num_swapped)
            self._end_swap(job)
        elif job.num_started > 1:
            self.recomputed_tokens += max(0, job.num_lost - job.num_computed)
        self.running.append(job)
        self.room_tokens += job.room
        self.computed_tokens += job.num_computed
        self.needed_tokens += min(job.room, job.stop_at)

    def _leave(self, job: ServedRequest) -> None:
        """Takes a running request's memory back."""
        self.running.remove(job)
        self.room_tokens -= job.room
        self.computed_tokens -= job.num_computed
        self.needed_tokens -= min(job.room, job.stop_at)
        self.memory.stop(job)

    def _end_swap(self, job: ServedRequest) -> None:
        if self.swap and job.num_swapped:
            self.swap.give(job.num_swapped)
        job.num_swapped = 0
