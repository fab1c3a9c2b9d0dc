"""Caches that hold the last tokens, and perhaps the first ones, and say so."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlib.plan import SeqId
from kvlib.rolling_ledger import RollingLedger
from kvlib.sizes import KVShape
from kvlib.tensors.caches import LedgerCache
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.per_head import spans
from kvlib.tensors.step import DevicePlan


class SinkWindowKVCache(LedgerCache):
    """The first tokens for good, and a ring of the last ones: StreamingLLM's choice.

    **Lossy.** A query at position `i` sees the first `sinks` tokens and those of `(i - window, i]`;
    what lies between is gone. Bound: if a share `e` of a query's attention lies on what is gone, a
    layer's output is off by at most `2 e max|v|`; what `e` is, no rule can promise, so the logits
    have no bound. A text of at most `sinks + window` tokens has `e = 0` and is read exactly. What
    stays keeps the rotary position it was written with (the paper's cache numbers anew).

    A step reads what it needs before it overwrites any of it, so a chunk of any length is computed
    as if token by token, and a step that fails leaves no trace.

    Args:
        shape: layers, KV heads and head size.
        num_seqs: rows.
        sinks: how many of the first tokens stay.
        window: how many of the last ones, the query itself included.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1 (`sinks`: 0), or the
            shape has no keys and values (MLA). Nothing is allocated.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks".

    Example:
        >>> cache = SinkWindowKVCache(KVShape(1, 1, 2), num_seqs=1, sinks=1, window=2)
        >>> cache.add("a")
        >>> with cache.step({"a": [0] * 5}) as plan:
        ...     cache.write(0, torch.ones(5, 1, 2), torch.ones(5, 1, 2), plan)
        >>> cache.length("a"), cache.positions("a")
        (5, [0, 3, 4])
    """

    lossy = True

    def __init__(
        self,
        shape: KVShape,
        num_seqs: int,
        sinks: int,
        window: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        ledger = RollingLedger(num_seqs, window, sinks)
        super().__init__(shape, ledger, num_seqs, ledger.row_len, dtype, device)
        self.max_seq_len: int | None = None
        # By plan, then by layer: several plans, of other sequences, may be open at once.
        self._fresh: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}

    def positions(self, seq_id: SeqId) -> list[int]:
        """Returns the positions held, oldest first; they are the same in every head."""
        return self.ledger.held(seq_id)

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens, 0 resets the row.

        Raises:
            ValueError: the next token would look at some that were overwritten, or `num_tokens` is
                not within `[0, length]`. Nothing changes.
        """
        self.ledger.truncate(seq_id, num_tokens)

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Takes one layer's new keys and values [T, Hkv, D]; the row changes at `commit`.

        Raises:
            ValueError: the plan is closed, or layer, shape, dtype or device do not fit. Nothing
                changes.
        """
        self.ledger.require_open(plan.host)
        self.store.require(layer, plan.host.num_tokens, k, v)
        # Copies: what came in is the caller's, who may use its memory again.
        self._fresh.setdefault(plan.host.plan_id, {})[layer] = (k.clone(), v.clone())
        self.note_written(plan, layer)

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends the new queries [T, Hq, D] to sinks and windows; returns [T, Hq, D].

        Raises:
            ValueError: the plan is closed, the layer not written, or as `KVStore.require_queries`.
        """
        self._require_written(layer, plan)
        self.store.require_queries(q, plan.host.num_tokens)
        out = torch.empty_like(q)
        for seq_id, rows in spans(plan):
            if rows.start == rows.stop:
                continue
            held = self.positions(seq_id)
            k, v = self._held_and_new(seq_id, layer, plan, rows)
            seen = self._seen([*held, *plan.host.positions[rows]], rows.stop - rows.start)
            sides = (side.transpose(0, 1)[None] for side in (q[rows], k, v))
            mask = seen.to(self.device)
            attended = scaled_dot_product_attention(*sides, attn_mask=mask, enable_gqa=True)
            out[rows] = attended[0].transpose(0, 1)
            self.counters.bytes_read += k.nbytes + v.nbytes
            self.counters.kernels["sdpa_masked"] += 1
            self.counters.attention_pairs += int(seen.sum()) if layer == 0 else 0
        return out

    def commit(self, plan: DevicePlan) -> None:
        """Writes the new tokens that are held from now on, and advances the lengths.

        Raises:
            ValueError: the plan is not open.
            Also what a copy raises. In each case nothing changes, old tokens of a ring included.
        """
        self._fill_unwritten(plan)
        # Of the tokens of a step that share a slot, the last one stays.
        stays = {slot: row for row, slot in enumerate(plan.host.slot_mapping)}.values()
        index = torch.tensor(list(stays), dtype=torch.int64, device=self.device)
        slots = plan.slot_mapping[index]
        at = (slots // self.store.block_size, slice(None), slots % self.store.block_size)
        with Overwrites() as over:
            for layer, sides in self._fresh.get(plan.host.plan_id, {}).items():
                for side, new in zip((self.store.keys, self.store.values), sides, strict=True):
                    over.put(side[layer], at, new[index])
                    self.counters.bytes_written += len(index) * new[:1].nbytes
            super().commit(plan)
        self._fresh.pop(plan.host.plan_id, None)

    def abort(self, plan: DevicePlan) -> None:
        """Forgets the plan and its keys and values; the row is as it was."""
        super().abort(plan)
        self._fresh.pop(plan.host.plan_id, None)

    def check(self) -> None:
        """Proves what `LedgerCache.check` does, that rows and noted steps are the ledger's."""
        super().check()
        self._check_rows()
        self._check_noted(self._fresh)

    def _seen(self, positions: Sequence[int], num_queries: int) -> Tensor:
        """Which of the keys each query sees, bool [num_queries, num_keys]."""
        key = torch.tensor(positions)
        query = key[len(positions) - num_queries :, None]
        sinks, window = self.ledger.sinks, self.ledger.window
        return (key <= query) & ((key < sinks) | (key > query - window))

    def _held_and_new(
        self, seq_id: SeqId, layer: int, plan: DevicePlan, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of a step [Tk, Hkv, D], in order of position."""
        slots = torch.tensor(self.ledger.held_slots(seq_id), dtype=torch.int64)
        held = self.store.read(layer, slots.to(self.device))
        fresh = self._fresh[plan.host.plan_id][layer]
        k, v = (torch.cat((old, new[rows])) for old, new in zip(held, fresh, strict=True))
        self.counters.bytes_copied += k.nbytes + v.nbytes
        return k, v


class RollingKVCache(SinkWindowKVCache):
    """A ring of `window` slots for each sequence: old tokens are overwritten, positions are kept.

    **Lossy.** A query sees the last `window` tokens, itself included, and nothing before them. For
    a model trained with that window this is exact; for any other it forgets, the oldest first.
    Bound: if a share `e` of a query's attention lies on what is gone, a layer's output is off by at
    most `2 e max|v|`; what `e` is, no rule can promise. What stays keeps the rotary position it was
    written with: token 1000 is at position 1000.

    Args:
        shape: layers, KV heads and head size.
        num_seqs: rings.
        window: slots per ring.
        options: `dtype`, `device`, as for `SinkWindowKVCache`.

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

    def __init__(self, shape: KVShape, num_seqs: int, window: int, **options: object) -> None:
        super().__init__(shape, num_seqs, 0, window, **options)
