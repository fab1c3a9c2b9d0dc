"""Random requests on an engine without its model.

The engine's moves are carried out on a shadow that holds, for each slot, the text up to and with
its token and whose it is. So a block that is found, swapped or forked wrongly is seen at once.
"""

from __future__ import annotations

from typing import Any

from kvlib.engine_desk import RequestDesk
from kvlib.engine_refusals import EngineFull
from kvlib.engine_request import EngineRequest
from kvlib.plan import SequenceTooLong
from kvlib.scheduled_ledger import ScheduledLedger
from kvlib.scheduled_memory import Move
from operation_serving import LIMITS, LINES, VICTIMS
from operation_steps import Broken, Subject


class Desk(Subject):
    """Requests with samples, deadlines and cancels, in blocks that are shared, forked, swapped."""

    rules = ("_submit", "_submit", "_step", "_step", "_step", "_step", "_cancel", "_late")
    partial = frozenset({"_step", "_cancel"})

    def build(self) -> None:
        choice = self.random.choice
        self.now_s, self.size = 0.0, choice([2, 4])
        self.desk = RequestDesk(
            choice([8, 11, 30]),
            self.size,
            40,
            max_seq_len=None,
            prefix_caching=choice([True, True, False]),
            swap_tokens=choice([0, 9, 500]),
            max_waiting=6,
            clock=self.clock,
            limits=choice(LIMITS),
            victim=choice(VICTIMS),
            waiting=choice(LINES)(),
        )
        self.faults.before(self.desk.memory.pool, "allocate")
        self.ledger = ScheduledLedger(self.desk.memory)
        self.bytes: dict[int, Any] = {}
        self.host: dict[Any, list[Any]] = {}
        self.desk.memory.on_forget = lambda job: self.host.pop(job, None)
        self.seen: list[EngineRequest] = []
        self.end, self.step = self.desk.end, self._step

    def clock(self) -> float:
        """Returns the time, or fails."""
        self.faults.here()
        return self.now_s

    def state(self) -> Any:
        orders = [job.order for job in self.desk.live]
        return orders, self.desk.memory.num_free, len(self.desk.memory.moves)

    def check(self) -> None:
        self.desk.check()
        self.seen = [each for each in self.seen if not each.done]
        live = [*self.desk.live.values()]
        assert all(each in self.seen for each in live), "a request of nobody"
        first = [each for each in self.seen if each.job is not None]
        assert len(first) == len(live), f"{len(first)} requests have begun, {len(live)} are known"
        swapped = {job for job in self.desk.live if job.num_swapped}
        moving = {move.job for move in self.desk.memory.moves}
        assert swapped <= self.host.keys() | moving, "tokens are swapped out and nowhere"
        assert self.host.keys() <= swapped | moving, "the host keeps what nobody wants"

    def finish(self) -> None:
        left = 3000
        while self.desk.has_work:
            assert left, "requests wait or run for ever"
            left -= 1
            self.now_s += 1.0
            self._step()
            self.check()
        assert not self.seen and not self.host, f"{self.seen}, {len(self.host)} are lost"
        assert not self.desk.memory.num_held, "memory is held by nobody"
        self.ledger.check()

    def _submit(self) -> None:
        alike, length = self.random.choice([(0, 1), (2, 5), (5, 9), (9, 12)])
        own = self.random.randrange(3)
        prompt = [i if i < alike else 10 + 7 * own + i for i in range(length)]
        new, late = self.random.randint(1, 12), self.random.choice([None, None, 9.0])
        rest = (frozenset({3}), self.clock(), late, self.random.choice(["", "a"]))
        count = self.random.choice([1, 1, 2, 3])
        made = [EngineRequest(self, prompt, new, self._chooser(i), *rest) for i in range(count)]
        try:
            self.desk.take(made)
        except (EngineFull, SequenceTooLong):
            return
        self.seen += made

    def _chooser(self, which: int) -> Any:
        def choose(history: list[int]) -> int:
            if which == 2 and len(history) % 11 == 10:
                raise Broken("the rule of a sample fails")
            return (5 * sum(history) + len(history) + which) % 41

        return choose

    def _step(self) -> None:
        desk, began = self.desk, self.clock()
        desk.end_late(began)
        if not desk.has_work:
            return
        step = desk.scheduler.schedule()
        self._carry_out()
        due = []
        for request, count in [(desk.live[job], n) for job, n in step.work if job.room]:
            try:
                self._compute(request, count)
            except Broken as error:
                desk.end(request, "error", error)
                continue
            if request.computed(count, began):
                due += [request, *request.unborn]
        for each in due:
            try:
                history = each.prompt + each.tokens
                each.draw(history, 41)
            except Broken as error:
                desk.end(each, "error", error)
        now_s = self.clock()
        desk.scheduler.report(step, now_s)
        desk.deliver(due, now_s)

    def _carry_out(self) -> None:
        moves = self.desk.memory.moves
        while moves:
            move, failed = moves[0], None
            try:
                self.faults.here()
                self._copy(move)
            except Broken as error:
                failed = error
            self.desk.moved(move, failed)
            if moves and moves[0] is move:
                moves.popleft()
            if move.kind == "in":
                self.host.pop(move.job, None)

    def _copy(self, move: Move) -> None:
        if move.kind == "copy":
            ((src, dst),) = move.blocks
            for i in range(move.num_tokens):
                self.bytes[dst * self.size + i] = self.bytes[src * self.size + i]
            return
        where = [block * self.size + i for _, block in move.blocks for i in range(self.size)]
        where = where[: move.num_tokens]
        if move.kind == "out":
            self.host[move.job] = [self.bytes[slot] for slot in where]
        elif move.num_tokens:
            kept = self.host[move.job][-move.num_tokens :]
            self.bytes.update(zip(where, kept, strict=True))

    def _compute(self, request: EngineRequest, count: int) -> None:
        """Writes what is new, then reads all, as attention does."""
        job = request.job
        known = request.known(0, job.num_computed + count)
        plan = self.ledger.plan({job: known[job.num_computed :]})
        try:
            self.faults.here()
            for at, token_slot in zip(plan.positions, plan.slot_mapping, strict=True):
                self.bytes[token_slot] = (request.tenant, tuple(known[: at + 1]))
            for at in range(job.num_computed + count):
                slot = job.block_ids[at // self.size] * self.size + at % self.size
                right = (request.tenant, tuple(known[: at + 1]))
                assert self.bytes[slot] == right, f"{job.order} finds another's token at {at}"
        finally:  # the scheduler notes what was computed; the plan takes and gives nothing
            self.ledger.commit(plan)

    def _cancel(self) -> None:
        if self.seen:
            self.random.choice(self.seen).cancel()

    def _late(self) -> None:
        self.now_s += self.random.randint(0, 3)


SUBJECTS = {"engine desk": Desk}
