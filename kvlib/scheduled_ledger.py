"""Step plans for requests whose blocks a scheduler's memory has given: a ledger that owns none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlib.blocks import BlockPool
from kvlib.kv_memory import KVMemory
from kvlib.open_plans import OpenPlans
from kvlib.plan import StepPlan
from kvlib.served import ServedRequest


class ScheduledLedger:
    """Says where the tokens of a step go, in blocks that each request holds already.

    It is used as `PagedLedger` is in a step: `plan`, then `commit` or `abort`. It hands out no
    block: the scheduler has made room before. And lengths do not advance here: a request's
    `num_computed` does, when the step is reported to the scheduler. So a step that fails has
    changed nothing, and can be planned again.

    Args:
        memory: the scheduler's.

    Example:
        >>> from kvlib.request import Request
        >>> memory = KVMemory(num_blocks=4, block_size=2)
        >>> job = ServedRequest(Request(0, None, 3, 1), 0, 0.0, 4, 4, num_tokens=3)
        >>> memory.start(job, 3)
        >>> step = ScheduledLedger(memory).plan({job: [11, 12, 13]})
        >>> step.slot_mapping, step.block_table, step.context_lens
        ((0, 1, 2), ((0, 1),), (3,))
    """

    window = None

    def __init__(self, memory: KVMemory) -> None:
        self.memory = memory
        self.block_size = memory.block_size
        self._open = OpenPlans()

    @property
    def pool(self) -> BlockPool:
        """The memory's blocks."""
        return self.memory.pool

    @property
    def num_free(self) -> int:
        """Blocks that no request holds."""
        return self.memory.pool.num_free

    @property
    def open_plan_ids(self) -> frozenset[int]:
        """The plans that are neither committed nor aborted."""
        return self._open.plan_ids

    @property
    def max_seq_len(self) -> int:
        """The longest sequence the whole pool could hold."""
        return self.memory.most

    def length(self, job: ServedRequest) -> int:
        """Returns how many tokens of a request are computed."""
        return job.num_computed

    def plan(self, new: Mapping[ServedRequest, Sequence[int]]) -> StepPlan:
        """Plans one step in the blocks that its requests hold.

        Args:
            new: the next tokens of each request that takes part.

        Raises:
            ValueError: a request has too little room, or is in an open plan. Nothing changes.
        """
        for job, tokens in new.items():
            self._open.refuse(job)
            if job.num_computed + len(tokens) > job.room:
                raise ValueError(
                    f"request {job.order} has room for {job.room} tokens, asked for {len(tokens)}"
                    f" after {job.num_computed}"
                )
        width = max((len(job.block_ids) for job in new), default=0)
        null, size = self.pool.null_block_id, self.block_size
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for job, tokens in new.items():
            blocks, first = job.block_ids, job.num_computed
            span = range(first, first + len(tokens))
            positions += span
            slots += [blocks[i // size] * size + i % size for i in span]
            starts.append(len(positions))
        context_lens = tuple(job.num_computed + len(tokens) for job, tokens in new.items())
        return StepPlan(
            seq_ids=tuple(new),
            positions=tuple(positions),
            slot_mapping=tuple(slots),
            query_start=tuple(starts),
            context_lens=context_lens,
            block_table=tuple(
                (*job.block_ids, *[null] * (width - len(job.block_ids))) for job in new
            ),
            block_size=size,
            plan_id=self._open.open(new, context_lens),
        )

    def commit(self, plan: StepPlan) -> None:
        """Closes a plan; the scheduler notes what was computed.

        Raises:
            ValueError: the plan is not open. Nothing changes.
        """
        self._open.close(plan)

    abort = commit  # nothing was taken, so there is nothing to give back

    def require_open(self, plan: StepPlan) -> None:
        """Refuses a plan that was closed, whose slots may be somebody else's by now.

        Raises:
            ValueError: it was.
        """
        self._open.require(plan)

    def check(self) -> None:
        """Proves the memory's invariants, and that no plan was left open.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.memory.check()
        self._open.check()
        assert not self._open.seq_ids, f"{len(self._open.seq_ids)} requests are in a plan left open"
