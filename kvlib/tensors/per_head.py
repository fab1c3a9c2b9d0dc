"""What caches share in which every head of every layer holds tokens of its own choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from kvlib.budget_ledger import BudgetLedger
from kvlib.plan import SeqId
from kvlib.sizes import KVShape
from kvlib.tensors.caches import LedgerCache
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.step import DevicePlan, not_written


def spans(plan: DevicePlan) -> list[tuple[SeqId, slice]]:
    """Returns for each sequence of a step which rows of the packed tokens are its own."""
    starts = plan.host.query_start
    rows = [slice(start, stop) for start, stop in pairwise(starts)]
    return list(zip(plan.host.seq_ids, rows, strict=True))


class Moves(NamedTuple):
    """What one layer of one sequence will look like once its step is committed.

    Attributes:
        slots: [Hkv, W] int64, which slots of the row are overwritten, in each head.
        k: [Hkv, W, D], with what.
        v: [Hkv, W, D]; None as `k` where they lie in their slots already.
        positions: [Hkv, W], and whose keys and values these are.
        scores: [Hkv, held], of all that is held then, where a cache keeps any.
    """

    slots: Tensor
    k: Tensor | None
    v: Tensor | None
    positions: Tensor
    scores: Tensor | None = None


class PerHeadCache(LedgerCache):
    """What caches share in which every head of every layer holds tokens of its own choice.

    The choice of a step is made layer by layer while it attends, and carried out at `commit`: a
    layer's new keys and values are dropped as soon as those are chosen that stay, and a step that
    fails leaves no trace.

    Args:
        shape: layers, KV heads and head size.
        ledger: owns the rows.
        dtype: of the stored keys and values.
        device: where the bytes live.
    """

    lossy = True

    def __init__(
        self,
        shape: KVShape,
        ledger: BudgetLedger,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__(shape, ledger, ledger.num_seqs, ledger.row_len, dtype, device)
        self.max_seq_len: int | None = None
        # Bytes of attention weights written out; a fused kernel writes none.
        self.weight_bytes = 0
        self._held_positions = self._beside_store(torch.int32)
        self._fresh: dict[int, tuple[int, Tensor, Tensor]] = {}
        self._moves: dict[int, dict[int, dict[SeqId, Moves]]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes allocated, those that say which position is in which slot included."""
        return self.store.nbytes + self._held_positions.nbytes

    def positions(self, seq_id: SeqId, layer: int, head: int) -> list[int]:
        """Returns the positions that one KV head of one layer holds, in order."""
        held = self._held_positions[layer, self.ledger.row(seq_id), head]
        return sorted(held[: self.ledger.num_held(seq_id)].tolist())

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Takes one layer's new keys and values [T, Hkv, D] until `attend` has chosen.

        Raises:
            ValueError: the plan is closed, or layer, shape, dtype or device do not fit. Nothing
                changes.
        """
        self.ledger.require_open(plan.host)
        self.store.require(layer, plan.host.num_tokens, k, v)
        # Copies: what came in is the caller's, who may use its memory again.
        self._fresh[plan.host.plan_id] = (layer, k.clone(), v.clone())
        self.note_written(plan, layer)

    def commit(self, plan: DevicePlan) -> None:
        """Carries out what the layers have chosen, and advances the lengths.

        Raises:
            ValueError: the plan is closed, or a layer has not been attended to, so that nobody
                chose.
            Also what a copy raises. In each case nothing changes.
        """
        self.ledger.require_open(plan.host)
        chosen = self._moves.get(plan.host.plan_id, {})
        if plan.host.num_tokens and len(chosen) < len(self.store.keys):
            raise ValueError(
                f"every layer chooses what it holds while it attends: asked to commit"
                f" {len(self.store.keys)} layers, {len(chosen)} have attended"
            )
        with Overwrites() as over:
            for layer, by_sequence in chosen.items():
                for seq_id, moves in by_sequence.items():
                    self._carry_out(over, layer, self.ledger.row(seq_id), moves)
            super().commit(plan)
        self._forget(plan)

    def abort(self, plan: DevicePlan) -> None:
        """Forgets the plan and what its layers chose; the rows are as they were."""
        super().abort(plan)
        self._forget(plan)

    def check(self) -> None:
        """Proves what `LedgerCache.check` does, and that heads hold tokens that there are, once.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        self._check_rows()
        self._check_noted(self._fresh)
        self._check_noted(self._moves)
        for seq_id in self.ledger.seq_ids:
            length, num_held = self.ledger.length(seq_id), self.ledger.num_held(seq_id)
            held = self._held_positions[:, self.ledger.row(seq_id), :, :num_held]
            ordered = held.sort(-1).values
            once = bool((ordered[..., 1:] > ordered[..., :-1]).all())
            inside = not held.numel() or 0 <= int(held.min()) <= int(held.max()) < length
            assert once and inside, f"a head of {seq_id!r} holds a token twice, or none of its own"

    def _forget(self, plan: DevicePlan) -> None:
        self._fresh.pop(plan.host.plan_id, None)
        self._moves.pop(plan.host.plan_id, None)

    def _new(self, layer: int, plan: DevicePlan) -> tuple[Tensor, Tensor]:
        """The keys and values that were just written."""
        self.ledger.require_open(plan.host)
        written, k, v = self._fresh.get(plan.host.plan_id, (None, None, None))
        if written != layer:
            raise not_written(layer)
        return k, v

    def _choose(self, layer: int, plan: DevicePlan, seq_id: SeqId, moves: Moves) -> None:
        by_layer = self._moves.setdefault(plan.host.plan_id, {})
        by_layer.setdefault(layer, {})[seq_id] = moves

    def _carry_out(self, over: Overwrites, layer: int, row: int, moves: Moves) -> None:
        at = (torch.arange(len(moves.slots), device=self.device)[:, None], moves.slots)
        over.put(self._held_positions[layer, row], at, moves.positions.int())
        if moves.k is not None:
            over.put(self.store.keys[layer, row], at, moves.k)
            over.put(self.store.values[layer, row], at, moves.v)
            self.counters.bytes_written += moves.k.nbytes + moves.v.nbytes

    def _beside_store(self, dtype: torch.dtype) -> Tensor:
        """One number for every slot of every head: [L, S, Hkv, row_len]."""
        return torch.zeros(self.store.keys.shape[:4], dtype=dtype, device=self.device)


def gather(side: Tensor, index: Tensor) -> Tensor:
    """Returns the tokens [Hkv, W, D] of each head's own choice from a side [Hkv, Tk, D].

    Args:
        side: keys or values.
        index: [Hkv, W] int64.
    """
    return side.gather(1, index[..., None].expand(-1, -1, side.shape[2]))


def attention_weights(q: Tensor, keys: Sequence[Tensor], seen: Tensor) -> Tensor:
    """Returns who looks at whom how much, float32 [Hkv, Hq / Hkv, Tq, Tk]; each row adds to 1.

    A fused kernel never has these numbers in one place. Writing them costs Hq * Tq * Tk * 4 bytes.

    Args:
        q: [Tq, Hq, D].
        keys: parts [Hkv, Tk_i, D] of one sequence's keys, which are not copied together.
        seen: bool [Tq, Tk], which keys each query may see.
    """
    num_kv_heads, _, head_dim = keys[0].shape
    # In float32: half precision has no number for the scores of large keys.
    grouped = q.float().unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)
    parts = [grouped @ part.float()[:, None].transpose(-1, -2) for part in keys]
    scores = torch.cat(parts, dim=-1) / math.sqrt(head_dim)
    return scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
