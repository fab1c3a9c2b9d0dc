"""Who may begin where tokens are handed over: whose tokens came, then who is computed there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from kvlib.served import ServedRequest
from kvlib.waiting import FirstComeLine


class HandoverLine(FirstComeLine):
    """Who may begin at a receiver: those whose tokens have arrived, then those computed here.

    A request that is *expected* is in line, but is the head only once it is ready. Those that are
    ready come before those that lost their memory: they have theirs already.

    Example:
        >>> from kvlib.request import Request
        >>> line, job = HandoverLine(), ServedRequest(Request(0, None, 3, 2), 0, 0.0, 5, 5)
        >>> line.push(job); line.expect(job); line.head() is None, len(line)
        (True, 1)
        >>> line.ready(job); line.head() is job
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self._expected: dict[ServedRequest, None] = {}
        self._ready: deque[ServedRequest] = deque()

    @property
    def num_to_compute(self) -> int:
        """Those that wait here for memory to be computed in."""
        return len(self._jobs)

    def __len__(self) -> int:
        return len(self._ready) + len(self._jobs) + len(self._expected)

    def __iter__(self) -> Iterator[ServedRequest]:
        yield from self._ready
        yield from self._jobs
        yield from self._expected

    def expect(self, job: ServedRequest) -> None:
        """Holds a request back until `ready`; `ValueError` if it does not wait to be computed."""
        if job not in self._jobs:
            raise ValueError(f"request {job.order} does not wait to be computed here")
        self._jobs.remove(job)
        self._expected[job] = None

    def ready(self, job: ServedRequest) -> None:
        """Lets an expected request begin; `KeyError` if it was not expected."""
        if job not in self._expected:
            raise KeyError(f"request {job.order} is not expected, among {len(self._expected)}")
        del self._expected[job]
        self._ready.append(job)

    def head(self) -> ServedRequest | None:
        """Returns who is next, `None` if nobody may begin; nobody leaves."""
        return self._ready[0] if self._ready else super().head()

    def pop(self) -> ServedRequest:
        """Takes the head out and returns it; `IndexError` if nobody may begin."""
        return self._ready.popleft() if self._ready else super().pop()

    def remove(self, job: ServedRequest) -> None:
        """Takes out a job that gives up, wherever it stands; raises as `FirstComeLine.remove`."""
        if job in self._expected:
            del self._expected[job]
        elif job in self._ready:
            self._ready.remove(job)
        elif job in self._jobs:
            self._jobs.remove(job)
        else:
            raise ValueError(f"request {job.order} does not wait here, among {len(self)} that do")
