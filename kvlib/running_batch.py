"""The batch that runs: who has memory, how much of it is used, and what a preemption costs.

A scheduler decides who begins, grows or gives way; the batch keeps the books of it. Source of the
two ways to come back, by a copy or computed again: Kwon et al., SOSP 2023, §4.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvlib.memory import Memory
from kvlib.preemption import SwapSpace
from kvlib.served import ServedRequest


class RunningBatch(Sequence[ServedRequest]):
    """The requests that run, in the order they began; policies read it as a sequence.

    Args:
        memory: what they run in.
        swap: where tokens of those that lose it go; None computes them again.

    Attributes:
        room_tokens: tokens that all of them have room for.
        computed_tokens: tokens computed of all of them.
        needed_tokens: of their room, what they will fill before they end.
        recomputed_tokens: computed again so far, since memory was taken away.

    Example:
        >>> from kvlib.kv_memory import KVMemory
        >>> from kvlib.request import Request
        >>> batch = RunningBatch(KVMemory(num_blocks=4, block_size=2))
        >>> job = ServedRequest(Request(0, None, 3, 2), 0, 0.0, 5, 5, num_tokens=3)
        >>> batch.start(job, 3), len(batch), batch.room_tokens
        (0, 1, 4)
        >>> batch.grow(job, 5); batch.room_tokens, batch.needed_tokens
        (6, 5)
        >>> batch.stop(job); len(batch), batch.room_tokens
        (0, 0)
    """

    def __init__(self, memory: Memory, swap: SwapSpace | None = None) -> None:
        self.memory, self.swap = memory, swap
        self.room_tokens = self.computed_tokens = self.needed_tokens = 0
        self.recomputed_tokens = 0
        self._jobs: list[ServedRequest] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[ServedRequest]:
        return iter(self._jobs)

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def __getitem__(self, place: int | slice) -> ServedRequest | list[ServedRequest]:
        return self._jobs[place]

    def start(self, job: ServedRequest, num_tokens: int) -> int:
        """Gives a request room for `num_tokens` tokens, the first of them found where shared.

        Returns:
            How many of its tokens come back from the host.

        Raises:
            OutOfBlocks: there is too little. Nothing changes.
        """
        self.memory.start(job, num_tokens)
        job.num_started += 1
        if job.num_started == 1:
            job.num_cached_first = job.num_cached
        num_swapped = job.num_swapped
        if num_swapped:
            job.num_computed = max(job.num_computed, num_swapped)
            self.forget_swapped(job)
        elif job.num_started > 1:
            self.recomputed_tokens += max(0, job.num_lost - job.num_computed)
        self._jobs.append(job)
        self.room_tokens += job.room
        self.computed_tokens += job.num_computed
        self.needed_tokens += min(job.room, job.stop_at)
        return num_swapped

    def grow(self, job: ServedRequest, num_tokens: int) -> None:
        """Makes room for `num_tokens` tokens of a request in all.

        Raises:
            OutOfBlocks: there is too little. Nothing changes.
        """
        room, needed = job.room, min(job.room, job.stop_at)
        self.memory.grow(job, num_tokens)
        self.room_tokens += job.room - room
        self.needed_tokens += min(job.room, job.stop_at) - needed

    def stop(self, job: ServedRequest) -> None:
        """Takes a request's memory back.

        Raises:
            ValueError: it does not run. Nothing changes.
        """
        self._jobs.remove(job)
        self.room_tokens -= job.room
        self.computed_tokens -= job.num_computed
        self.needed_tokens -= min(job.room, job.stop_at)
        self.memory.stop(job)

    def save(self, job: ServedRequest) -> int:
        """Copies the tokens of a request that is about to be stopped to the host, if they fit.

        Returns:
            How many; 0 where all of them are lost, to be computed again.
        """
        job.num_preempted += 1
        if self.swap and self.swap.take(job.num_computed):
            job.num_swapped, job.num_lost = job.num_computed, 0
            return job.num_swapped
        job.num_lost = job.num_computed
        return 0

    def forget(self, job: ServedRequest) -> None:
        """Gives back what a request that waits still has: tokens on the host, a place reserved."""
        self.forget_swapped(job)
        if job.room:
            self.memory.stop(job)

    def forget_swapped(self, job: ServedRequest) -> None:
        """Gives the host memory of a request back: its tokens are here again, or not wanted."""
        if self.swap and job.num_swapped:
            self.swap.give(job.num_swapped)
        job.num_swapped = 0

    def check(self, waiting: Iterable[ServedRequest]) -> None:
        """Proves that the sums kept agree with the requests, and what the memory can prove.

        Args:
            waiting: who waits, of whom some have tokens on the host.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.memory.check()
        jobs = self._jobs
        assert len(set(jobs)) == len(jobs), "a request runs twice"
        sums = (
            ("room miscounted", self.room_tokens, (job.room for job in jobs)),
            ("computed miscounted", self.computed_tokens, (job.num_computed for job in jobs)),
            ("needed", self.needed_tokens, (min(job.room, job.stop_at) for job in jobs)),
        )
        for name, kept, tokens in sums:
            right = sum(tokens)
            assert kept == right, f"{name}: {kept} kept, {right} there are"
        assert all(job.room for job in jobs), "a request runs without room"
        if self.swap:
            self.swap.check()
            swapped = sum(job.num_swapped for job in waiting)
            taken = self.swap.num_tokens - self.swap.num_free
            assert swapped == taken, (
                f"swap space miscounted: {swapped} tokens wait in it, {taken} were taken in"
            )
