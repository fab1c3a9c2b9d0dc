"""A paged cache that knows which tokens its sequences hold, and not only how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlib.plan import SeqId
from kvlib.sizes import KVShape
from kvlib.tensors.paged import PagedKVCache, PagedPlan


class KnownTokensKVCache(PagedKVCache):
    """Blocks as in `PagedKVCache`, with the token ids of every live sequence beside them.

    Whoever names a block by its content needs them: a slot's keys and values do not tell which
    token they are of. They become a sequence's own at `commit`, as its length does.

    Args:
        shape: as for `PagedKVCache`, as are `num_blocks`, `block_size` and `options`.
        num_blocks: usable blocks.
        block_size: tokens per block.
        options: `window`, `way`, `pool`, `dtype`, `device`.

    Raises:
        TypeError, ValueError: as `PagedKVCache`. Nothing is allocated.

    Example:
        >>> cache = KnownTokensKVCache(KVShape(1, 1, 2), num_blocks=4, block_size=2)
        >>> cache.add("a")
        >>> with cache.step({"a": [7, 8, 9]}):
        ...     pass
        >>> cache.truncate("a", 2); cache.tokens("a")
        (7, 8)
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int = 16, **options: object
    ) -> None:
        super().__init__(shape, num_blocks, block_size, **options)
        self._tokens: dict[SeqId, list[int]] = {}
        self._planned: dict[int, Mapping[SeqId, Sequence[int]]] = {}

    def tokens(self, seq_id: SeqId) -> tuple[int, ...]:
        """Returns the tokens of a live sequence that have been committed."""
        return tuple(self._tokens[seq_id])

    def add(self, seq_id: SeqId) -> None:
        """Takes a new, empty sequence; raises as `PagedKVCache.add`."""
        super().add(seq_id)
        self._tokens[seq_id] = []

    def free(self, seq_id: SeqId) -> None:
        """Ends a sequence; raises as `PagedKVCache.free`."""
        super().free(seq_id)
        del self._tokens[seq_id]

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> PagedPlan:
        """Plans one step; raises as `PagedKVCache.plan`, and then nothing has changed."""
        plan = super().plan(new)
        self._planned[plan.host.plan_id] = {seq_id: list(tokens) for seq_id, tokens in new.items()}
        return plan

    def name_tokens(self, plan: PagedPlan, new: Mapping[SeqId, Sequence[int]]) -> None:
        """Says which tokens an open plan brings, where they were not known when it was made.

        Raises:
            ValueError: the plan is not open, or is one for other numbers of tokens. Nothing
                changes.
        """
        self.ledger.require_open(plan.host)
        planned = self._planned[plan.host.plan_id]
        counts = {seq_id: len(tokens) for seq_id, tokens in planned.items()}
        got = {seq_id: len(tokens) for seq_id, tokens in new.items()}
        if got != counts:
            raise ValueError(f"the plan brings {counts} tokens, got {got}")
        self._planned[plan.host.plan_id] = {s: list(tokens) for s, tokens in new.items()}

    def commit(self, plan: PagedPlan) -> None:
        """Makes the plan's tokens part of their sequences."""
        super().commit(plan)
        for seq_id, tokens in self._planned.pop(plan.host.plan_id).items():
            self._tokens[seq_id].extend(tokens)

    def abort(self, plan: PagedPlan) -> None:
        """Forgets the plan; lengths stay what they were."""
        super().abort(plan)
        del self._planned[plan.host.plan_id]

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first tokens; raises as the ledger's `truncate`."""
        super().truncate(seq_id, num_tokens)
        del self._tokens[seq_id][num_tokens:]

    def fork(self, parent: SeqId, child: SeqId) -> None:
        """Gives `child` the parent's tokens; raises as the ledger's `fork`."""
        super().fork(parent, child)
        self._tokens[child] = list(self._tokens[parent])

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> None:
        """Lets each sequence continue another's tokens; raises as the ledger's `reorder`."""
        super().reorder(sources)
        self._tokens.update({seq_id: list(self._tokens[s]) for seq_id, s in sources.items()})

    def check(self) -> None:
        """Proves what `PagedKVCache.check` does, and that as many tokens are known as are held.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        assert self._tokens.keys() == set(self.ledger.seq_ids), "tokens of another sequence"
        for seq_id, tokens in self._tokens.items():
            assert len(tokens) == self.length(seq_id), f"tokens of {seq_id!r} miscounted"
