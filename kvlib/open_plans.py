"""Which step plans are open: the part of a ledger that contiguous and paged caches share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from kvlib.plan import SeqId, StepPlan


class OpenPlans:
    """Keeps track of the plans that are neither committed nor aborted yet.

    A sequence is in one open plan at most. When addresses move (a cache grows), the plans made
    before are *outgrown*: their slots mean other places now, so they can only be aborted.

    Example:
        >>> plans = OpenPlans()
        >>> plan_id = plans.open(["a"])
        >>> plans.refuse("b")
        >>> plans.refuse("a")
        Traceback (most recent call last):
            ...
        ValueError: sequence 'a' is in an open plan: commit or abort it first
    """

    def __init__(self) -> None:
        self._by_sequence: dict[SeqId, int] = {}
        self._ids = count()
        self._listed: dict[int, tuple[int, ...]] = {}  # the context lengths of each
        self._outgrown: set[int] = set()

    @property
    def seq_ids(self) -> frozenset[SeqId]:
        """The sequences that are in an open plan."""
        return frozenset(self._by_sequence)

    @property
    def plan_ids(self) -> frozenset[int]:
        """The plans that are open, outgrown ones included."""
        return frozenset(self._listed)

    def open(self, seq_ids: Iterable[SeqId], context_lens: tuple[int, ...] = ()) -> int:
        """Opens a plan for sequences that are in none; returns the plan's id.

        Args:
            seq_ids: its sequences.
            context_lens: of the plan, so that one of another ledger with other lengths is refused.
        """
        plan_id = next(self._ids)
        self._by_sequence.update(dict.fromkeys(seq_ids, plan_id))
        self._listed[plan_id] = context_lens
        return plan_id

    def refuse(self, seq_id: SeqId) -> None:
        """Refuses to touch a sequence that is in an open plan.

        Raises:
            ValueError: it is.
        """
        if seq_id in self._by_sequence:
            raise ValueError(f"sequence {seq_id!r} is in an open plan: commit or abort it first")

    def require(self, plan: StepPlan) -> None:
        """Refuses a plan whose slots may be somebody else's by now.

        Raises:
            ValueError: it was committed or aborted before, or the cache has grown since.
        """
        self._require_listed(plan)
        if plan.plan_id in self._outgrown:
            raise ValueError("this plan is older than the last growth of the cache: only abort it")

    def close(self, plan: StepPlan, *, outgrown: bool = False) -> None:
        """Takes a plan off the list; one that is outgrown only if the caller allows it.

        Raises:
            ValueError: as `require`; nothing changes.
        """
        (self._require_listed if outgrown else self.require)(plan)
        for seq_id in plan.seq_ids:
            self._by_sequence.pop(seq_id, None)
        del self._listed[plan.plan_id]
        self._outgrown.discard(plan.plan_id)

    def outgrow(self) -> None:
        """Makes every open plan outgrown."""
        self._outgrown.update(self._by_sequence.values())

    def check(self) -> None:
        """Proves that every sequence is in a plan that is open, and only such ones are outgrown.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        lost = set(self._by_sequence.values()) - self._listed.keys()
        assert not lost, f"sequences in plans that are not open: {lost}"
        assert self._outgrown <= self._listed.keys(), f"outgrown, not open: {self._outgrown}"

    def _require_listed(self, plan: StepPlan) -> None:
        mine = (self._by_sequence.get(s) == plan.plan_id for s in plan.seq_ids if s is not None)
        ends = self._listed.get(plan.plan_id)
        if ends is None or not all(mine) or plan.context_lens[: len(ends)] != ends:
            raise ValueError(
                "this plan is not open: it was committed or aborted before, or is another ledger's"
            )
