"""Which slot when only the tokens that attention ranks highest are held.

A *position* counts every token that went through; a *slot* exists only for what is held. They are
two counters, and using one as the other turns every later key by a wrong angle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from kvlib.ledger import grown_len
from kvlib.partial_rows import PartialRowLedger
from kvlib.plan import BlockCopy, SeqId, StepPlan
from kvlib.sizes import whole_number
from kvlib.token_budget import require_room

# Where a token goes that has no slot yet: something must be given up first.
NO_SLOT = -1


class BudgetLedger(PartialRowLedger):
    """Owns rows of `budget` slots: after each step, so many tokens of a text are held, or all.

    It says how many, and whose the slots are. *Which* tokens stay is ranked by attention, and each
    head of each layer may rank otherwise; so a token that finds its row full is planned at
    `NO_SLOT`, and moves in where its head has made room.

    Args:
        num_seqs: rows.
        budget: slots per row.
        sinks: so many of the first tokens are never given up.
        recent: so many of the newest are never given up, at least 1.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1 (`sinks`: 0), or the
            budget has no room for sinks and newest tokens.

    Example:
        >>> ledger = BudgetLedger(num_seqs=1, budget=4)
        >>> ledger.add("a")
        >>> ledger.commit(ledger.plan({"a": [0] * 6}))
        >>> ledger.num_held("a"), ledger.length("a"), ledger.plan({"a": [0]}).positions
        (4, 6, (6,))
    """

    def __init__(self, num_seqs: int, budget: int, sinks: int = 0, recent: int = 1) -> None:
        require_room(budget, sinks, recent)
        super().__init__(num_seqs, budget)
        # `_gone` counts the tokens that were given up.
        self.budget, self.sinks, self.recent = budget, sinks, recent

    @property
    def used_tokens(self) -> int:
        """Slots that hold a token."""
        return sum(self.num_held(seq_id) for seq_id in self._rows)

    def num_held(self, seq_id: SeqId) -> int:
        """Returns how many tokens of a live sequence are held, in every head alike.

        Raises:
            KeyError: no such sequence.
        """
        return self.length(seq_id) - self._gone[seq_id]

    def _slots(self, seq_id: SeqId, positions: range) -> Iterable[int]:
        first = self._rows[seq_id] * self.row_len
        room = self.row_len if self._lengths[seq_id] else self.budget
        for at in positions:
            slot = at - self._gone[seq_id]
            yield first + slot if slot < room else NO_SLOT

    def _copies(self, seq_id: SeqId, src: int, dst: int) -> list[BlockCopy]:
        filled = self.num_held(seq_id)
        return [BlockCopy(src, dst, filled)] if filled else []

    def _settle(self, seq_id: SeqId) -> None:
        too_many = self.num_held(seq_id) - self.budget
        self._gone[seq_id] += max(0, too_many)

    def _cut(self, seq_id: SeqId, num_tokens: int) -> None:
        """What was given up, and for whom, cannot be undone."""
        gone, length = self._gone[seq_id], self._lengths[seq_id]
        if gone and 0 < num_tokens < length:
            raise ValueError(
                f"{gone} of {length} tokens were given up, in each head others, so it cannot go"
                f" back to {num_tokens}, only to 0"
            )
        if num_tokens == 0:
            self._gone[seq_id] = 0

    def _check_lengths(self) -> None:
        super()._check_lengths()
        for seq_id in self._lengths:
            gone, held = self._gone[seq_id], self.num_held(seq_id)
            assert gone >= 0 and 0 <= held <= self.row_len, f"{held} tokens of {seq_id!r} in a row"
            assert gone == 0 or held >= self.budget, "more was given up than had to go"


class PromptBudgetLedger(BudgetLedger):
    """Caps what is held of a prompt at `budget`; every later token stays, and rows grow for it.

    The prompt is the first step of a sequence. Later steps only add, and double all rows when one
    of them is too short.

    Args:
        num_seqs: rows, at first of `budget + room` slots each.
        budget: how many tokens of the prompt are held.
        sinks: as for `BudgetLedger`.
        recent: as for `BudgetLedger`.
        room: slots a row has beyond the budget from the start, for the answer.

    Example:
        >>> ledger = PromptBudgetLedger(num_seqs=1, budget=4)
        >>> ledger.add("a")
        >>> ledger.commit(ledger.plan({"a": [0] * 6}))
        >>> step = ledger.plan({"a": [0]}); step.slot_mapping, ledger.row_len
        ((4,), 8)
        >>> ledger.commit(step); ledger.num_held("a"), ledger.length("a")
        (5, 7)
    """

    def __init__(
        self, num_seqs: int, budget: int, sinks: int = 0, recent: int = 1, room: int = 0
    ) -> None:
        whole_number("room", room, least=0)
        super().__init__(num_seqs, budget, sinks, recent)
        self.row_len += room

    def row_len_for(self, new: Mapping[SeqId, Sequence[int]]) -> int:
        """Returns how long rows must be for a step, the present length if that is enough.

        Raises:
            KeyError, ValueError: as `plan`. Nothing changes.
        """
        super().row_len_for(new)
        needed = [self.num_held(s) + len(new[s]) for s in new if self._lengths[s]]
        return grown_len(self.row_len, max(needed, default=0), inf, self.growth)

    def commit(self, plan: StepPlan) -> None:
        """Makes the plan's tokens part of their sequences; of a first step, `budget` at most.

        Raises:
            ValueError: as `SequenceLedger.commit`. Nothing changes.
        """
        self.require_open(plan)
        prompts = [s for s in plan.seq_ids if s is not None and not self._lengths[s]]
        super().commit(plan)
        for seq_id in prompts:
            super()._settle(seq_id)

    def _settle(self, seq_id: SeqId) -> None:
        """Nothing goes later: the answer stays whole."""
