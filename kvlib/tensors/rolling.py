"""A cache that keeps the last tokens only, and says so."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvlib.plan import SeqId
from kvlib.rolling_ledger import RollingLedger
from kvlib.sizes import KVShape
from kvlib.tensors.attention import contiguous_attention
from kvlib.tensors.caches import LedgerCache
from kvlib.tensors.step import DevicePlan


class RollingKVCache(LedgerCache):
    """A ring of `window` slots for each sequence: old tokens are overwritten, positions are kept.

    **Lossy.** A query sees the last `window` tokens, itself included, and nothing before them. For
    a model trained with that window this is exact; for any other it forgets, the oldest first.
    Bound: if a share `e` of a query's attention lies on what is gone, a layer's output is off by at
    most `2 e max|v|`; what `e` is, no rule can promise. What stays keeps the rotary position it was
    written with: token 1000 is at position 1000.

    A step reads the window before it overwrites any of it, so a chunk of any length is computed as
    if token by token, and a step that fails leaves the ring as it was.

    Args:
        shape: layers, KV heads and head size.
        num_seqs: rings.
        window: slots per ring.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or the shape has no
            keys and values (MLA). Nothing is allocated.

    Example:
        >>> cache = RollingKVCache(KVShape(1, 1, 2), num_seqs=1, window=3)
        >>> cache.add("a")
        >>> with cache.step({"a": [0] * 5}) as plan:
        ...     cache.write(0, torch.ones(5, 1, 2), torch.ones(5, 1, 2), plan)
        >>> cache.length("a"), cache.positions("a")
        (5, [2, 3, 4])
    """

    lossy = True

    def __init__(
        self,
        shape: KVShape,
        num_seqs: int,
        window: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        ledger = RollingLedger(num_seqs, window)
        super().__init__(shape, ledger, num_seqs, window, dtype, device)
        self.window = window
        self.max_seq_len: int | None = None
        # By plan, then by layer: several plans, of other sequences, may be open at once.
        self._fresh: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}

    def positions(self, seq_id: SeqId) -> list[int]:
        """Returns the positions still held, oldest first."""
        return list(self.ledger.held(seq_id))

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens, 0 resets the ring.

        The newest token can always be taken back, and any number while the ring has not wrapped.

        Raises:
            ValueError: the next token would look at some that were overwritten, or `num_tokens` is
                not within `[0, length]`. Nothing changes.
        """
        self.ledger.truncate(seq_id, num_tokens)

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Takes one layer's new keys and values [T, Hkv, D]; the ring changes at `commit`."""
        self.ledger.require_open(plan.host)
        self._fresh.setdefault(plan.host.plan_id, {})[layer] = (k, v)

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends the new queries [T, Hq, D] to their windows; returns [T, Hq, D]."""
        self.ledger.require_open(plan.host)
        if layer == 0:
            self._count_pairs(plan.host, self.window)
        fresh = self._fresh[plan.host.plan_id][layer]
        out = torch.empty_like(q)
        for s, seq_id in enumerate(plan.host.seq_ids):
            rows = slice(plan.host.query_start[s], plan.host.query_start[s + 1])
            k, v = self._window(seq_id, layer, [side[rows] for side in fresh])
            out[rows] = contiguous_attention(q[rows], k, v, window=self.window)
            self.counters.bytes_read += k.nbytes + v.nbytes
        return out

    def commit(self, plan: DevicePlan) -> None:
        """Writes the new tokens over the oldest ones and advances the lengths."""
        self.ledger.require_open(plan.host)
        for layer, (k, v) in self._fresh.pop(plan.host.plan_id, {}).items():
            for s, seq_id in enumerate(plan.host.seq_ids):
                stop = plan.host.query_start[s + 1]
                start = max(plan.host.query_start[s], stop - self.window)
                slots = self._slots(seq_id, plan.host.positions[start:stop])
                self.store.write(layer, slots, k[start:stop], v[start:stop])
                self.counters.bytes_written += k[start:stop].nbytes + v[start:stop].nbytes
        super().commit(plan)

    def abort(self, plan: DevicePlan) -> None:
        """Forgets the plan and its keys and values; the ring is as it was."""
        super().abort(plan)
        self._fresh.pop(plan.host.plan_id, None)

    def _slots(self, seq_id: SeqId, positions: Sequence[int]) -> Tensor:
        base = self.ledger.row(seq_id) * self.window
        ring = [base + position % self.window for position in positions]
        return torch.tensor(ring, dtype=torch.int64, device=self.device)

    def _window(self, seq_id: SeqId, layer: int, fresh: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values a step needs, in order of position: what is held, then what is new."""
        held = self.store.read(layer, self._slots(seq_id, self.positions(seq_id)))
        k, v = (torch.cat(parts) for parts in zip(held, fresh, strict=True))
        self.counters.bytes_copied += k.nbytes + v.nbytes
        return k.transpose(0, 1), v.transpose(0, 1)
