"""From the instance that computed a prompt to the one that decodes: memory held on both sides.

A prompt's keys and values stay with their sender until all of them have gone, and have their place
at the receiver before the first of them goes. So for a while they are held twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from kvlib.kv_memory import KVMemory
from kvlib.served import ServedRequest


@dataclass(frozen=True)
class Link:
    """What carries keys and values from one instance to another.

    Attributes:
        gb_s: bytes, in units of 1e9, a second; infinity for a link that takes no time.
        latency_s: before the first byte.

    Raises:
        ValueError: the bandwidth is not above 0, or the latency is negative or infinite.

    Example:
        A prompt of 1,024 tokens of Llama-3-8B, 128 KiB each, over 25 GB/s:

        >>> round(1000 * Link(25).seconds(1024 * 131_072), 2)
        5.37
    """

    gb_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.gb_s > 0:
            raise ValueError(f"a link needs a bandwidth above 0 GB/s, got {self.gb_s!r}")
        if not (isfinite(self.latency_s) and self.latency_s >= 0):
            raise ValueError(f"a latency is at least 0 s and finite, got {self.latency_s!r}")

    def seconds(self, num_bytes: int) -> float:
        """Returns the time of one transfer that has the link to itself."""
        return self.latency_s + num_bytes / (self.gb_s * 1e9)


class SendingMemory(KVMemory):
    """Blocks that a request keeps when it has ended, until `sent` says that they have gone.

    What is preempted or dropped gives its blocks back at once.

    Example:
        >>> from kvlib.request import Request
        >>> memory = SendingMemory(num_blocks=4, block_size=4)
        >>> job = ServedRequest(Request(0, None, 5, 1), 0, 0.0, 6, 6, num_tokens=5)
        >>> memory.start(job, 5); job.finished_s = 1.0
        >>> memory.stop(job); memory.num_free
        8
        >>> memory.sent(job); memory.num_free
        16
    """

    @property
    def ended(self) -> tuple[ServedRequest, ...]:
        """Requests that have ended and keep their blocks until they are sent."""
        return tuple(job for job in self._live if job.finished_s is not None)

    def stop(self, job: ServedRequest) -> None:
        """Takes a request's blocks back, unless it has ended; raises as `KVMemory.stop`."""
        if job.finished_s is None or job not in self._live:
            super().stop(job)

    def sent(self, job: ServedRequest) -> None:
        """Takes back the blocks of a request that has ended.

        Raises:
            ValueError: it has not ended, or holds nothing. Nothing changes.
        """
        if job.finished_s is None:
            raise ValueError(f"request {job.request.request_id} has not ended, nothing was sent")
        super().stop(job)


class ReceivingMemory(KVMemory):
    """Blocks that can be given to a request before its tokens are there.

    The tokens that are handed over are all that the receiver knows of it but the last.

    Example:
        Five tokens come from elsewhere; the sixth is the first that this instance computes:

        >>> from kvlib.request import Request
        >>> memory = ReceivingMemory(num_blocks=4, block_size=4)
        >>> job = ServedRequest(Request(0, None, 6, 2), 0, 0.0, 8, 8, num_tokens=6)
        >>> memory.reserve(job, 6); memory.num_free, memory.cached_tokens(job)
        (8, 0)
        >>> memory.arrived(job); memory.start(job, 6); memory.num_free, job.num_computed
        (8, 5)
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._coming: dict[ServedRequest, int] = {}  # tokens that have arrived

    @property
    def coming(self) -> tuple[ServedRequest, ...]:
        """Requests that have a place and do not run yet."""
        return tuple(self._coming)

    def reserve(self, job: ServedRequest, num_tokens: int) -> None:
        """Gives a request that is to come room for `num_tokens`; raises as `KVMemory.start`."""
        super().start(job, num_tokens)
        self._coming[job] = 0

    def arrived(self, job: ServedRequest) -> None:
        """Notes that the request's tokens are there.

        Raises:
            KeyError: no place was reserved. Nothing changes.
        """
        self._place_of(job)
        self._coming[job] = job.num_tokens - 1

    def stop(self, job: ServedRequest) -> None:
        """Takes a request's blocks back, those of a reserved place too; as `KVMemory.stop`."""
        super().stop(job)
        self._coming.pop(job, None)

    def cached_tokens(self, job: ServedRequest) -> int:
        """Returns how many tokens have arrived; of any other request none is here."""
        return self._coming.get(job, 0)

    def cost(self, job: ServedRequest, num_tokens: int) -> int:
        """Returns the free tokens that starting takes: none of those that were reserved."""
        return max(0, self.rounded(num_tokens) - job.room * (job in self._coming))

    def start(self, job: ServedRequest, num_tokens: int) -> None:
        """Gives a request its reserved place, with what has arrived; any other, as `KVMemory`."""
        if job not in self._coming:
            super().start(job, num_tokens)
            return
        self.grow(job, num_tokens)
        job.num_cached = job.num_computed = self._coming.pop(job)

    def check(self) -> None:
        """Proves what `KVMemory` does, and that every reserved place has its blocks."""
        super().check()
        for job, num_arrived in self._coming.items():
            assert job in self._live, f"{job.order} has a place and no blocks"
            there = f"{num_arrived} tokens of {job.order} arrived"
            assert num_arrived in (0, job.num_tokens - 1), f"{there}, {job.num_tokens - 1} are due"
            assert num_arrived <= job.room, f"{there}, it has room for {job.room}"

    def _place_of(self, job: ServedRequest) -> None:
        if job not in self._coming:
            raise KeyError(f"request {job.request.request_id} has no place reserved here")
