"""Random operations on ledgers whose sequences share blocks."""

from __future__ import annotations

from typing import Any

from kvlib.blocks import BlockPool
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import StepPlan
from kvlib.sharded_ledger import ShardedLedger
from operation_ledgers import Ledger
from operation_steps import subject


class Paged(Ledger):
    """Blocks that sequences share, with copies before a shared one is written."""

    def put_faults_in(self) -> None:
        self.faults.before(self.ledger, "_slots")
        self.faults.before(self.ledger.pool, "allocate")
        self.faults.before(self.ledger.pool, "share")

    def place(self, seq_id: int) -> Any:
        return self.ledger.table(seq_id)

    def state(self) -> Any:
        pool = self.ledger.pool
        return super().state(), [pool.ref_count(each) for each in range(pool.num_blocks)]

    def held(self, seq_id: int) -> list[tuple[int, int]]:
        table, size = self.ledger._tables[seq_id], self.ledger.block_size
        blocks = table.block_ids
        pending = table._pending
        if pending is not None and pending.replaced is not None:  # until the step is settled
            blocks = (*blocks[: pending.first // size], pending.replaced)
        where = range(table.first_position, self.ledger.length(seq_id))
        return [(at, blocks[at // size] * size + at % size) for at in where]


class Marked(Paged):
    """Blocks in a pool with a listener that fails; some are marked, as a prefix index does."""

    rules = (*Ledger.rules, "_mark", "_mark")

    def put_faults_in(self) -> None:
        super().put_faults_in()
        self.content: dict[int, list[int | None]] = {}
        self.ledger.pool.on_evict = self._evicted

    def _evicted(self, block_id: int) -> None:
        del self.content[block_id]
        self.faults.here()

    def _mark(self) -> None:
        free = [s for s in self.tokens if self.tokens[s] and not self._busy([s])]
        if not free:
            return
        size, pool = self.ledger.block_size, self.ledger.pool
        held = self.held(self.random.choice(free))
        block_id = held[-1][1] // size
        if not pool.has_content(block_id):
            pool.mark(block_id)
            filled = held[-1][1] % size + 1
            self.content[block_id] = [self.bytes.get(block_id * size + i) for i in range(filled)]

    def check_bytes(self) -> None:
        super().check_bytes()
        size = self.ledger.block_size
        for block_id, tokens in self.content.items():
            assert self.ledger.pool.has_content(block_id), "content was lost untold"
            now = [self.bytes.get(block_id * size + i) for i in range(len(tokens))]
            assert now == tokens, f"marked block {block_id} held {tokens}, now {now}"


class Sharded(Ledger):
    """The blocks of a sequence go round the ranks."""

    def put_faults_in(self) -> None:
        for each in self.ledger.ledgers:
            self.faults.before(each.pool, "allocate")

    def place(self, seq_id: int) -> Any:
        return [each.table(seq_id) for each in self.ledger.ledgers]

    def state(self) -> Any:
        return super().state(), [each.num_free for each in self.ledger.ledgers]

    def _write(self, plan: StepPlan, tokens: list[int]) -> None:
        parts = self.ledger.parts(plan)
        assert sum(part.num_tokens for part in parts) == len(tokens), "a token is on no rank"

    def check_bytes(self) -> None:
        """Bytes are followed rank by rank in `Paged`; here each rank's share is proved."""
        for tokens in self.tokens.values():
            ranks = range(self.ledger.num_ranks)
            assert sum(self.ledger.held(len(tokens), rank) for rank in ranks) == len(tokens)


SUBJECTS = {
    "ledger: blocks": subject(Paged, make=lambda r: PagedLedger(r.choice([5, 9]), 3)),
    "ledger: blocks of 1": subject(Paged, make=lambda random: PagedLedger(17, 1)),
    "ledger: blocks of a window": subject(
        Paged, make=lambda r: PagedLedger(r.choice([3, 9]), 2, window=5), lossy=True
    ),
    "ledger: blocks in a pool": subject(
        Marked, make=lambda random: PagedLedger(9, 3, pool=BlockPool(9))
    ),
    "ledger: blocks on ranks": subject(
        Sharded, make=lambda r: ShardedLedger(4, 2, r.choice([1, 2, 3]))
    ),
}
