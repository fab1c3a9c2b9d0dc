"""Random operations on ledgers of rows that do not keep every token."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from kvlib.budget_ledger import BudgetLedger, PromptBudgetLedger
from kvlib.ledger import ContiguousLedger
from kvlib.plan import BlockCopy, StepPlan
from kvlib.rolling_ledger import RollingLedger
from operation_ledgers import Ledger
from operation_steps import subject


class Rolling(Ledger):
    """A ring: writes wait for the commit, as a ring's cache must let them."""

    lossy = True

    def _write(self, plan: StepPlan, tokens: list[int]) -> None:
        """Nothing yet: an aborted step would have lost what it wrote over."""

    def _committed(self, plan: StepPlan, new: dict[int, list[int]]) -> None:
        self.bytes.update(zip(plan.slot_mapping, [*chain.from_iterable(new.values())], strict=True))
        super()._committed(plan, new)

    def held(self, seq_id: int) -> list[tuple[int, int]]:
        slots = self.ledger.held_slots(seq_id)
        return [*zip(self.ledger.held(seq_id), slots, strict=True)]


class Budget(Ledger):
    """Which tokens are held is for attention to say, so that there are no bytes to follow."""

    lossy = True

    def _write(self, plan: StepPlan, tokens: list[int]) -> None:
        real = [slot for slot in plan.slot_mapping if slot >= 0]
        assert len(set(real)) == len(real), "two tokens in one slot"

    def _copy(self, copies: Iterable[BlockCopy], size: int) -> None:
        """No bytes."""

    def check_bytes(self) -> None:
        used = sum(self.ledger.num_held(s) for s in self.tokens)
        assert used == self.ledger.used_tokens <= self.ledger.reserved_tokens, "tokens miscounted"


SUBJECTS = {
    "ledger: rows": subject(Ledger, make=lambda random: ContiguousLedger(3, 11)),
    "ledger: rows that grow": subject(Ledger, make=lambda random: ContiguousLedger(4, 30, 1)),
    "ledger: rings": subject(Rolling, make=lambda r: RollingLedger(3, 4, r.choice([0, 2]))),
    "ledger: a budget": subject(Budget, make=lambda r: BudgetLedger(3, 6, r.choice([0, 2]))),
    "ledger: a prompt's budget": subject(
        Budget, make=lambda random: PromptBudgetLedger(3, 5, sinks=1, room=2)
    ),
}
