"""Fair shares between tenants: whoever was served least goes first."""

from __future__ import annotations

from collections.abc import Iterator

from kvlib.turns import Turns
from kvlib.waiting import FirstComeLine, Job


class FairLine:
    """The tenant that was served least goes first; each tenant's own requests are first come.

    A counter a tenant adds up what it was served. Among equals the tenant goes first whose next
    request arrived first. Until service is noted again, an admitted request counts as if its whole
    prompt had been computed, so that one step does not admit a single tenant's requests.

    A tenant that comes to wait while none of its requests did is lifted to the least counter among
    those that wait, or where nobody waits to that of the last tenant to leave: being idle saves up
    no credit. A preempted request goes before the others of its tenant, and computing it again
    counts as service. `head` and `pop` grow with the logarithm of the tenants, not with who waits.

    Args:
        input_weight: what a token of a prompt counts, above 0.
        output_weight: what a token that the model made counts, above 0.

    Raises:
        ValueError: a weight is not above 0.

    Source: the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models"
    (OSDI 2024). The weights 1 and 2 and the lift are those of `vtc_req_queue.py` in the
    authors' repository VTC-artifact, which lifts nobody where nobody waits.

    Example:
        Tenant a has asked for two prompts of 100 tokens before b asks for one:

        >>> from types import SimpleNamespace as Job
        >>> line = FairLine()
        >>> for order, tenant in enumerate("aab"):
        ...     line.push(Job(order=order, request=Job(tenant=tenant, prompt_tokens=100)))
        >>> first = line.pop(); line.served(first, num_tokens=100)
        >>> first.order, line.counter("a"), line.counter("b"), line.pop().order
        (0, 100, 0, 2)
    """

    counts_service = True

    def __init__(self, input_weight: float = 1, output_weight: float = 2) -> None:
        if not (input_weight > 0 and output_weight > 0):
            raise ValueError(f"weights are above 0, got {input_weight} and {output_weight}")
        self._weights = input_weight, output_weight
        self._counters: dict[str, float] = {}
        self._admitted: dict[str, float] = {}  # prompts since service was last noted
        self._lines: dict[str, FirstComeLine] = {}  # of the tenants that wait
        self._num_waiting = 0
        self._turns = Turns(self._key)
        self._last_left = ""

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Job]:
        """Everyone who waits, tenant by tenant, the one served least first."""
        for tenant in sorted(self._lines, key=self._key):
            yield from self._lines[tenant]

    def counter(self, tenant: str) -> float:
        """Returns what a tenant was served, weighted, lifts included; 0 if it never came."""
        return self._counters.get(tenant, 0)

    def push(self, job: Job) -> None:
        """Takes a request that has arrived, behind the others of its tenant."""
        self._line_of(job.request.tenant).push(job)
        self._entered(job.request.tenant)

    def push_front(self, job: Job) -> None:
        """Takes back a request that was preempted, before the others of its tenant."""
        self._line_of(job.request.tenant).push_front(job)
        self._entered(job.request.tenant)

    def head(self) -> Job | None:
        """Returns who is next, `None` if nobody waits; nobody leaves."""
        return self._lines[self._turns.first()].head() if self._lines else None

    def pop(self) -> Job:
        """Takes the head out and returns it; `IndexError` if nobody waits."""
        if not self._lines:
            raise IndexError("asked for 1 request, 0 wait")
        tenant = self._turns.first()
        job = self._lines[tenant].pop()
        price = self._weights[False] * job.request.prompt_tokens
        self._admitted[tenant] = self._admitted.get(tenant, 0) + price
        self._left(tenant)
        return job

    def remove(self, job: Job) -> None:
        """Takes out a job that gives up; `ValueError`, and no change, if it does not wait here."""
        tenant = job.request.tenant
        self._lines.get(tenant, FirstComeLine()).remove(job)
        self._left(tenant)

    def served(self, job: Job, num_tokens: int, output: bool = False) -> None:
        """Notes prompt tokens computed, not found in a cache, or with `output` tokens generated.

        Raises:
            ValueError: fewer than 0 tokens. Nothing changes.
        """
        if num_tokens < 0:
            raise ValueError(f"at least 0 tokens are served, got {num_tokens}")
        tenant = job.request.tenant
        self._counters[tenant] = self.counter(tenant) + self._weights[output] * num_tokens
        if self._admitted:
            again, self._admitted = self._admitted, {}
            for each in again.keys() & self._lines.keys():
                self._turns.enter(each)  # it may have less now than its prompts counted

    def check(self) -> None:
        """Proves that exactly the tenants that wait have a place, none of them too far back.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        for line in self._lines.values():
            line.check()
        waiting = sum(map(len, self._lines.values()))
        assert self._num_waiting == waiting, f"{waiting} wait, {self._num_waiting} are counted"
        assert all(map(len, self._lines.values())), "a tenant without requests waits"
        turns, tenants = len(self._turns), len(self._lines)
        assert turns == tenants, f"{turns} tenants have a turn, {tenants} wait"
        self._turns.check()

    def _key(self, tenant: str) -> tuple[float, int]:
        served = self._counters[tenant] + self._admitted.get(tenant, 0)
        return served, self._lines[tenant].head().order

    def _line_of(self, tenant: str) -> FirstComeLine:
        """The line of a tenant, which is lifted if it was not waiting."""
        if tenant not in self._lines:
            rival = self._turns.first() if self._lines else self._last_left
            self._counters[tenant] = max(self.counter(tenant), self.counter(rival))
            self._lines[tenant] = FirstComeLine()
        return self._lines[tenant]

    def _entered(self, tenant: str) -> None:
        self._num_waiting += 1
        self._turns.enter(tenant)

    def _left(self, tenant: str) -> None:
        self._num_waiting -= 1
        if not self._lines[tenant]:
            del self._lines[tenant]
            self._turns.leave(tenant)
            self._last_left = tenant
        else:
            self._turns.enter(tenant)  # the next of its requests may have come before this one
