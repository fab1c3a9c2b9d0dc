"""A cache in which every head holds the tokens that were looked at most, and says so: H2O."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvlib.budget_ledger import BudgetLedger
from kvlib.plan import SeqId
from kvlib.sizes import KVShape
from kvlib.tensors.attention import causal_mask
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.per_head import Moves, PerHeadCache, attention_weights, gather, spans
from kvlib.tensors.step import DevicePlan

# Weights of so many queries exist at once; a long prompt would have Hq * T * T of them.
QUERIES_AT_ONCE = 256


class HeavyHitterKVCache(PerHeadCache):
    """Holds `budget` tokens in each head: the newest, and those given most attention so far.

    **Lossy.** Beyond `budget` tokens each KV head of each layer gives up the one with the least
    accumulated attention, for good: what nobody looked at *yet* goes, however much it will be asked
    for. Bound: if a share `e` of a query's attention lies on what is gone, a layer's output is off
    by at most `2 e max|v|`; what `e` is, no rule can promise, so the logits have no bound. A text
    of at most `budget` tokens has `e = 0`. What stays keeps the rotary position it was written
    with.

    The weights of all queries are needed, of the query heads of a KV head together, and a fused
    kernel never writes them: this cache computes them in the open (`weight_bytes` counts). A step
    attends to all that is held and to all its own tokens, and chooses at its end, so a prompt
    that comes in one step is read whole; bytes are bounded between steps.

    Args:
        shape: layers, KV heads and head size.
        num_seqs: rows.
        budget: slots per row.
        recent: so many of the newest tokens stay whatever their score, at least 1.
        sinks: so many of the first tokens stay whatever their score.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1 (`sinks`: 0), the budget
            has no room for sinks and newest tokens, or the shape has no keys and values (MLA).
            Nothing is allocated.

    Source: Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of
    Large Language Models"; one choice per KV head is ours, since the paper's models
    share none.

    Example:
        Three tokens; the third is like the first, so the second has least attention:

        >>> cache = HeavyHitterKVCache(KVShape(1, 1, 2), num_seqs=1, budget=2, recent=1)
        >>> cache.add("a")
        >>> x = torch.tensor([[[9.0, 0.0]], [[0.0, 0.0]], [[9.0, 0.0]]])
        >>> for token in x:
        ...     with cache.step({"a": [0]}) as plan:
        ...         cache.write(0, token[None], token[None], plan)
        ...         _ = cache.attend(0, token[None], plan)
        >>> cache.positions("a", layer=0, head=0), cache.length("a")
        ([0, 2], 3)
    """

    def __init__(
        self,
        shape: KVShape,
        num_seqs: int,
        budget: int,
        recent: int,
        *,
        sinks: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(shape, BudgetLedger(num_seqs, budget, sinks, recent), dtype, device)
        self._scores = self._beside_store(torch.float32)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, positions and scores included."""
        return super().nbytes + self._scores.nbytes

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends the new queries [T, Hq, D] to what is held and to the new tokens; [T, Hq, D].

        Raises:
            ValueError: the plan is closed, the layer not written, or as `KVStore.require_queries`.
        """
        new = self._new(layer, plan)
        self.store.require_queries(q, plan.host.num_tokens)
        out = torch.empty_like(q)
        for seq_id, rows in spans(plan):
            if rows.start == rows.stop:
                continue
            row, num_held = self.ledger.row(seq_id), self.ledger.num_held(seq_id)
            held = self.store.view(layer, row, num_held)
            fresh = [side[rows].transpose(0, 1) for side in new]
            out[rows], received = self._weigh(q[rows], held, fresh)
            moves = self._moves_of(layer, seq_id, plan.positions[rows], received, fresh)
            self._choose(layer, plan, seq_id, moves)
            self._count(layer, num_held, held, rows.stop - rows.start)
        return out

    def _weigh(
        self, q: Tensor, held: tuple[Tensor, Tensor], new: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Returns the output [Tq, Hq, D] and the attention each key was given, [Hkv, Tk]."""
        num_held, num_new = held[0].shape[1], len(q)
        outs, received = [], 0
        for at in range(0, num_new, QUERIES_AT_ONCE):
            part = q[at : at + QUERIES_AT_ONCE]
            stop = at + len(part)
            seen = causal_mask(stop, num_held + stop, device=q.device)[at:]
            keys = (held[0], new[0][:, :stop])
            weights = attention_weights(part, keys, seen)
            self.weight_bytes += weights.nbytes
            given = weights.sum((1, 2))
            received = received + torch.nn.functional.pad(given, (0, num_new - stop))
            weights = weights.to(q.dtype)
            out = weights[..., :num_held] @ held[1][:, None]
            out = out + weights[..., num_held:] @ new[1][:, None, :stop]
            outs.append(out.permute(2, 0, 1, 3).flatten(1, 2))
        return torch.cat(outs), received

    def _moves_of(
        self, layer: int, seq_id: SeqId, positions: Tensor, received: Tensor, new: list[Tensor]
    ) -> Moves:
        """Which of the tokens held and new stay, in each head, and what moves for it."""
        row, num_held = self.ledger.row(seq_id), self.ledger.num_held(seq_id)
        scores, total = received, received.shape[1]
        scores[:, :num_held] += self._scores[layer, row, :, :num_held]
        fresh = positions.expand(len(scores), -1)
        if total <= self.ledger.budget:
            slots = torch.arange(num_held, total, device=self.device).expand_as(fresh)
            return Moves(slots, *new, fresh, scores)
        known = torch.cat((self._held_positions[layer, row, :, :num_held].long(), fresh), dim=1)
        always = known < self.ledger.sinks
        always |= known > positions[-1] - self.ledger.recent
        ranks = scores.masked_fill(always, math.inf)
        if len(positions) == 1:
            # The newest always stays, and takes the slot of the one that goes.
            slots = ranks[:, :num_held].argmin(dim=1, keepdim=True)
            scores = scores[:, :num_held].scatter(1, slots, scores[:, num_held:])
            return Moves(slots, *new, fresh, scores)
        stay = ranks.topk(self.ledger.budget, dim=1).indices.sort(dim=1).values
        sides = zip(self.store.view(layer, row, num_held), new, strict=True)
        k, v = (gather(torch.cat((old, side), dim=1), stay) for old, side in sides)
        slots = torch.arange(self.ledger.budget, device=self.device).expand_as(stay)
        return Moves(slots, k, v, known.gather(1, stay), scores.gather(1, stay))

    def _carry_out(self, over: Overwrites, layer: int, row: int, moves: Moves) -> None:
        super()._carry_out(over, layer, row, moves)
        held = (slice(None), slice(moves.scores.shape[1]))
        over.put(self._scores[layer, row], held, moves.scores)

    def _count(self, layer: int, num_held: int, held: tuple[Tensor, Tensor], num_new: int) -> None:
        self.counters.bytes_read += sum(side.nbytes + num_new * side[:, :1].nbytes for side in held)
        self.counters.kernels["weights_in_the_open"] += 1
        if layer == 0:
            self.counters.attention_pairs += num_new * num_held + num_new * (num_new + 1) // 2
