"""Random operations on memory with a prefix index, under every policy, beside a shadow of bytes.

The shadow holds for each slot the text up to and with its token, and whose it is: so a block that
is found wrongly, or written while others hold it, is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.plan import OutOfBlocks
from kvlib.priority import PriorityPolicy, Retain
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.retention import DropAll, RankedFIFO, RankedLFU, RankedLRU, SLRUPolicy
from kvlib.served import ServedRequest
from operation_steps import Subject, subject


class Prefixes(Subject):
    """Requests that start, compute, grow and stop in blocks that they share."""

    rules = (
        *("_start", "_start", "_start", "_compute", "_compute", "_compute", "_grow", "_grow"),
        *("_stop", "_stop", "_room", "_time", "_refuse"),
    )
    partial = frozenset({"_stop", "_room"})
    index: type = HashIndex
    policy: Callable[[Any], Any] = lambda self: None

    def build(self) -> None:
        self.now, self.num_made = 0.0, 0
        self.size = self.random.choice([1, 2, 4])
        policy = type(self).policy(self)
        self.memory = KVMemory(
            self.random.choice([4, 9]), self.size, lambda pool: self.index(pool, policy)
        )
        self.faults.before(self.memory.pool, "allocate")
        self._listen()
        self.running: list[ServedRequest] = []
        self.stopped: list[ServedRequest] = []
        self.bytes: dict[int, Any] = {}

    def _listen(self) -> None:
        """Lets the index's listener fail after its work; not inside, where it calls itself."""
        pool, real, depth = self.memory.pool, self.memory.pool.on_evict, [0]

        def evicted(block_id: int) -> None:
            depth[0] += 1
            try:
                real(block_id)
            finally:
                depth[0] -= 1
            if not depth[0]:
                self.faults.here()

        pool.on_evict = evicted

    def clock(self) -> float:
        """Returns the time, or fails."""
        self.faults.here()
        return self.now

    def retain(self, content: Any, i: int) -> Retain:
        """Says how long a block should stay, or fails, or says what no policy takes."""
        self.faults.here()
        priority = 101 if self.faults.armed and self.chance(0.3) else 40 + 20 * (i % 3)
        return Retain(priority, 3.0) if i % 2 else Retain(priority)

    def state(self) -> Any:
        pool = self.memory.pool
        jobs = [(job.order, [*job.block_ids], job.room, job.num_indexed) for job in self.running]
        return jobs, [pool.ref_count(each) for each in range(pool.num_blocks)]

    def check(self) -> None:
        memory = self.memory
        memory.check()
        assert memory.num_free + memory.num_held == memory.size, "tokens are lost"
        for job in self.running:
            text = self._text(job)
            for at in range(job.num_computed):
                found = self.bytes[self._slot(job, at)]
                assert found == text[at], f"request {job.order} finds another's token at {at}"

    def finish(self) -> None:
        for job in [*self.running]:
            self.running.remove(job)
            self.memory.stop(job)
            self.check()
        memory = self.memory
        assert memory.num_free == memory.size, f"{memory.num_held} tokens are held by nobody"
        assert not getattr(memory.prefixes, "held", ()), "the index holds blocks for nobody"

    def _text(self, job: ServedRequest) -> list[Any]:
        tokens = [*job.content._tokens]
        return [(job.request.tenant, tuple(tokens[: at + 1])) for at in range(len(tokens))]

    def _slot(self, job: ServedRequest, at: int) -> int:
        return job.block_ids[at // self.size] * self.size + at % self.size

    def _start(self) -> None:
        if len(self.running) > 4:
            return
        tokens = [self.random.randrange(2) for _ in range(self.random.randint(1, 9))]
        tenant = self.random.choice("aab")
        content = TokenContent(tokens, self.size, {"tenant": tenant})
        request = Request(self.num_made, None, len(tokens), 9, tenant=tenant)
        job = ServedRequest(request, self.num_made, 0.0, 99, 99, content, num_tokens=len(tokens))
        self.num_made += 1
        found, cost = self.memory.cached_tokens(job), self.memory.cost(job, len(tokens))
        free, before = self.memory.num_free, self.state()
        try:
            self.memory.start(job, len(tokens))
        except OutOfBlocks:
            assert cost > free, f"refused though it costs {cost} of {free}"
            assert self.state() == before, "a refused start left something behind"
            return
        assert job.num_cached == found < len(tokens), f"{found} tokens were promised"
        assert free - self.memory.num_free == cost, f"it should cost {cost} of {free}"
        self.running.append(job)

    def _compute(self) -> None:
        if self.running:
            job = self.random.choice(self.running)
            first, text = job.num_computed, self._text(job)
            end = self.random.randint(first, min(job.num_tokens, job.room))
            for at in range(first, end):
                self.bytes[self._slot(job, at)] = text[at]
            job.num_computed = end
            try:
                self.memory.index(job)
            except ValueError as error:  # the policy refuses a priority
                assert "priorities are 0 to 100" in str(error), str(error)

    def _grow(self) -> None:
        if self.running:
            job, before = self.random.choice(self.running), self.state()
            more = self.random.randint(1, 3)
            try:
                self.memory.grow(job, job.num_tokens + more)
            except OutOfBlocks:
                assert self.state() == before, "a refused call changed something"
                return
            job.content.append([self.random.randrange(2) for _ in range(more)])
            job.num_tokens += more

    def _stop(self) -> None:
        """Also one that has computed nothing yet, as a client that goes away would."""
        if self.running:
            job = self.running.pop(self.random.randrange(len(self.running)))
            self.stopped = [*self.stopped[-4:], job]
            self.memory.stop(job)

    def _room(self) -> None:
        self.memory.prefixes.make_room(self.random.randint(0, 4))

    def _time(self) -> None:
        self.now += self.random.randint(0, 3)

    def _refuse(self) -> None:
        if self.stopped:
            job = self.stopped[-1]
            self.refused(lambda: self.memory.stop(job), ValueError)
            self.refused(lambda: self.memory.grow(job, 1), ValueError)
        if self.running:
            job = self.running[0]
            self.refused(lambda: self.memory.start(job, 1), ValueError)


POLICIES = {
    "the pool's order": lambda self: None,
    "LRU": lambda self: RankedLRU(),
    "FIFO": lambda self: RankedFIFO(),
    "LFU": lambda self: RankedLFU(),
    "SLRU": lambda self: SLRUPolicy(),
    "drop all": lambda self: DropAll(0.2),
    "priorities": lambda self: PriorityPolicy(self.retain, self.clock),
}
SUBJECTS = {
    f"{name}: {how}": subject(Prefixes, index=index, policy=policy)
    for name, index in (("hash index", HashIndex), ("radix tree", RadixTree))
    for how, policy in POLICIES.items()
}
