"""Random operations on every ledger, with a shadow of the bytes that its plans write and copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from kvlib.ledger import ContiguousLedger
from kvlib.plan import BlockCopy, OutOfBlocks, SequenceTooLong, StepPlan
from operation_steps import Subject

NO_ROOM = (OutOfBlocks, SequenceTooLong)


class Ledger(Subject):
    """A ledger against the tokens of each sequence; plans may stay open while others go on.

    Attributes:
        lossy: it may refuse to go back, for what it would need is gone.
    """

    rules = (
        *("_add", "_add", "_step", "_step", "_step", "_step", "_close", "_close"),
        *("_fork", "_truncate", "_reorder", "_free", "_refuse"),
    )
    make: Callable[[Random], Any]
    lossy = False

    def build(self) -> None:
        self.ledger = type(self).make(self.random)
        self.tokens: dict[int, list[int]] = {}
        self.open: list[tuple[StepPlan, dict[int, list[int]]]] = []
        self.bytes: dict[int, int] = {}
        self.num_made = self.num_tokens = 0
        self.total = self.ledger.num_free
        self.put_faults_in()

    def put_faults_in(self) -> None:
        """Chooses the places that may fail."""
        self.faults.before(self.ledger, "_slots")

    def place(self, seq_id: int) -> Any:
        """Returns where a sequence lies."""
        return self.ledger.row(seq_id)

    def state(self) -> Any:
        live = [(s, self.ledger.length(s), self.place(s)) for s in self.ledger.seq_ids]
        return live, self.ledger.num_free

    def check(self) -> None:
        self.ledger.check()
        live = {s: self.ledger.length(s) for s in self.ledger.seq_ids}
        right = {s: len(tokens) for s, tokens in self.tokens.items()}
        assert live == right, f"lengths are {live}, should be {right}"
        self.check_bytes()

    def check_bytes(self) -> None:
        """Proves that every sequence finds its own tokens where the ledger says they are."""
        for seq_id, tokens in self.tokens.items():
            held = self.held(seq_id)
            found = [self.bytes.get(slot) for _, slot in held]
            right = [tokens[at] for at, _ in held]
            assert found == right, f"sequence {seq_id} finds {found}, wrote {right}"

    def held(self, seq_id: int) -> list[tuple[int, int]]:
        """Returns the positions that are still there, each with its slot."""
        row = self.ledger.row(seq_id) * self.ledger.row_len
        return [(at, row + at) for at in range(self.ledger.length(seq_id))]

    def finish(self) -> None:
        for plan, _ in self.open:
            self.ledger.abort(plan)
        for seq_id in self.tokens:
            self.ledger.free(seq_id)
        self.open, self.tokens = [], {}
        self.check()
        free = self.ledger.num_free
        assert free == self.total, f"{free} of {self.total} are free, and nobody lives"

    def _busy(self, seq_ids: Iterable[int]) -> bool:
        return any(s in new for s in seq_ids for _, new in self.open)

    def _any(self) -> int:
        return self.random.choice([*self.tokens])

    def _add(self) -> None:
        self.num_made += 1
        if not self.ledger.can_add():
            self.refused(lambda: self.ledger.add(self.num_made), OutOfBlocks)
        elif len(self.tokens) < 6:
            self.ledger.add(self.num_made)
            self.tokens[self.num_made] = []

    def _new(self) -> dict[int, list[int]]:
        chosen = [s for s in self.tokens if not self._busy([s]) and self.chance(0.6)]
        new = {}
        for seq_id in chosen:
            count = self.random.choice([0, 1, 1, 1, 2, 5])
            new[seq_id] = [*range(self.num_tokens, self.num_tokens + count)]
            self.num_tokens += count
        return new

    def _step(self) -> None:
        new, before = self._new(), self.state()
        row_len = getattr(self.ledger, "row_len", 0)
        try:
            plan = self.ledger.plan(new)
        except NO_ROOM:
            assert self.state() == before, "a refused plan left something behind"
            return
        finally:
            self._moved(row_len)
        self._write(plan, [token for tokens in new.values() for token in tokens])
        self.open.append((plan, new))
        if self.chance(0.8):
            self._close_one(len(self.open) - 1)

    def _moved(self, row_len: int) -> None:
        now = getattr(self.ledger, "row_len", 0)
        if now != row_len:
            old = self.bytes
            self.bytes = {s // row_len * now + s % row_len: token for s, token in old.items()}

    def _write(self, plan: StepPlan, tokens: list[int]) -> None:
        self._copy(plan.copies, plan.block_size)
        assert len(set(plan.slot_mapping)) == len(tokens), "two tokens in one slot"
        self.bytes.update(zip(plan.slot_mapping, tokens, strict=True))

    def _copy(self, copies: Iterable[BlockCopy], size: int) -> None:
        for src, dst, count in copies:
            for i in range(count):
                self.bytes[dst * size + i] = self.bytes[src * size + i]

    def _close(self) -> None:
        if self.open:
            self._close_one(self.random.randrange(len(self.open)))

    def _close_one(self, which: int) -> None:
        plan, new = self.open.pop(which)
        commits = self.chance(0.8)
        try:
            (self.ledger.commit if commits else self.ledger.abort)(plan)
        except ValueError:  # rows have grown since
            assert commits and isinstance(self.ledger, ContiguousLedger), "a plan is not open"
            self.ledger.abort(plan)
            commits = False
        if commits:
            self._committed(plan, new)
        if self.chance(0.2):
            self.refused(lambda: self.ledger.commit(plan), ValueError)
            self.refused(lambda: self.ledger.abort(plan), ValueError)

    def _committed(self, plan: StepPlan, new: dict[int, list[int]]) -> None:
        for seq_id, tokens in new.items():
            self.tokens[seq_id] = self.tokens[seq_id] + tokens

    def _fork(self) -> None:
        if not self.tokens or len(self.tokens) > 5:
            return
        parent = self._any()
        self.num_made += 1
        fork = self.num_made
        if self._busy([parent]):
            self.refused(lambda: self.ledger.fork(parent, fork), ValueError)
        elif not self.ledger.can_add():
            self.refused(lambda: self.ledger.fork(parent, fork), OutOfBlocks)
        else:
            self._copy(self.ledger.fork(parent, fork), getattr(self.ledger, "row_len", 0))
            self.tokens[fork] = self.tokens[parent]

    def _truncate(self) -> None:
        if not self.tokens:
            return
        seq_id = self._any()
        length, before = len(self.tokens[seq_id]), self.state()
        keep = self.random.randint(-1, length + 1)
        if self._busy([seq_id]) or not 0 <= keep <= length:
            self.refused(lambda: self.ledger.truncate(seq_id, keep), ValueError)
            return
        try:
            self.ledger.truncate(seq_id, keep)
        except ValueError:
            assert self.lossy and keep, "it cannot go back, though nothing is gone"
            assert self.state() == before, "a refused call changed something"
            return
        self.tokens[seq_id] = self.tokens[seq_id][:keep]

    def _reorder(self) -> None:
        live = [s for s in self.tokens if self.chance(0.8)]
        sources = {s: self.random.choice(live) for s in live}
        if self._busy(live):
            self.refused(lambda: self.ledger.reorder(sources), ValueError)
            return
        self._copy(self.ledger.reorder(sources), getattr(self.ledger, "row_len", 0))
        self.tokens.update({s: self.tokens[source] for s, source in sources.items()})

    def _free(self) -> None:
        if self.tokens:
            seq_id = self._any()
            if self._busy([seq_id]):
                self.refused(lambda: self.ledger.free(seq_id), ValueError)
                return
            self.ledger.free(seq_id)
            del self.tokens[seq_id]
            self.refused(lambda: self.ledger.free(seq_id), KeyError)

    def _refuse(self) -> None:
        if not self.tokens:
            return
        seq_id, other = self._any(), type(self).make(self.random)
        other.add(seq_id)
        plan = other.plan({seq_id: [1]})
        mine = [(each.seq_ids, each.context_lens) for each, _ in self.open]
        if (plan.seq_ids, plan.context_lens) not in mine:  # else it says what one of ours says
            self.refused(lambda: self.ledger.commit(plan), ValueError)
            self.refused(lambda: self.ledger.abort(plan), ValueError)
        self.refused(lambda: self.ledger.add(seq_id), ValueError)
        self.refused(lambda: self.ledger.plan({-1: [1]}), KeyError)
