"""A cache that keeps of a prompt what its last tokens look at, and says so: SnapKV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from kvlib.budget_ledger import PromptBudgetLedger
from kvlib.plan import SeqId
from kvlib.sizes import KVShape
from kvlib.tensors.attention import causal_mask, contiguous_attention
from kvlib.tensors.per_head import Moves, PerHeadCache, attention_weights, gather, spans
from kvlib.tensors.step import DevicePlan
from kvlib.token_budget import require_odd


class SnapKVCache(PerHeadCache):
    """Holds `budget` tokens of a prompt in each head, chosen once, and every token of the answer.

    **Lossy.** Of a prompt longer than `budget` each KV head of each layer keeps the last `observe`
    tokens and those that these look at, averaged over `kernel` neighbours. What the end of the
    prompt does not ask for is gone, so a question that comes later does not find it. An answer that
    is copied out of the prompt is longer than what its end looks at, and `kernel` has to reach the
    rest. Bound: if a share `e` of a query's attention lies on what is gone, a layer's output is off
    by at most `2 e max|v|`; what `e` is, no rule can promise, so the logits have no bound. A prompt
    of at most `budget` tokens has `e = 0`. What stays keeps the rotary position it was written
    with.

    The prompt is the first step of a sequence, and is attended to whole, by the fused kernel; the
    weights of its last `observe` queries are computed once more in the open (`weight_bytes`
    counts). Later tokens all stay: rows start at `budget + room` slots and double, all of them,
    when an answer needs it. So the prompt's bytes are capped and the answer's are not.

    Args:
        shape: layers, KV heads and head size.
        num_seqs: rows.
        budget: how many tokens of a prompt are held, the last `observe` among them.
        observe: how many tokens at the prompt's end choose.
        kernel: odd; scores are averaged over so many neighbours, beyond the ends there are zeros.
            A find lifts `kernel // 2` tokens on either side.
        sinks: so many of the first tokens stay whatever their score.
        room: slots a row has beyond the budget from the start, for the answer.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1 (`sinks`: 0), the budget
            has no room for sinks and the observing tokens, the kernel is even, or the shape has no
            keys and values (MLA). Nothing is allocated.

    Source: Li et al. 2024, "SnapKV: LLM Knows What You are Looking for Before Generation"; one
    choice per KV head is ours: a choice per query head would store a shared head several times.

    Example:
        >>> cache = SnapKVCache(KVShape(1, 1, 2), num_seqs=1, budget=2, observe=1, kernel=1)
        >>> cache.add("a")
        >>> x = torch.tensor([[[0.0, 0.0]], [[9.0, 0.0]], [[0.0, 9.0]], [[9.0, 0.0]]])
        >>> with cache.step({"a": [0] * 4}) as plan:
        ...     cache.write(0, x, x, plan)
        ...     _ = cache.attend(0, x, plan)
        >>> cache.positions("a", layer=0, head=0), cache.length("a")
        ([1, 3], 4)
    """

    def __init__(
        self,
        shape: KVShape,
        num_seqs: int,
        budget: int,
        observe: int = 32,
        kernel: int = 5,
        *,
        sinks: int = 0,
        room: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        require_odd(kernel)
        ledger = PromptBudgetLedger(num_seqs, budget, sinks, observe, room)
        super().__init__(shape, ledger, dtype, device)
        self.kernel = kernel

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> DevicePlan:
        """Plans one step, growing the rows first if an answer needs longer ones.

        Growth outgrows plans that are still open: they can only be aborted. If the memory for the
        longer rows is not to be had, nothing has changed.

        Raises:
            KeyError, ValueError: as `BudgetLedger.row_len_for`. Nothing changes.
        """
        row_len = self.ledger.row_len_for(new)
        if row_len != self.ledger.row_len:
            longer = self._new_store(row_len)
            more = (0, row_len - self.ledger.row_len)
            positions = pad(self._held_positions, more)
            for seq_id in self.ledger.seq_ids:
                row, num_held = self.ledger.row(seq_id), self.ledger.num_held(seq_id)
                copied = longer.copy_block(row, row, num_held, source=self.store)
                self.counters.bytes_copied += copied
            self.store, self._held_positions = longer, positions
        return super().plan(new)

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Takes new keys and values [T, Hkv, D]: a prompt's until `attend`, an answer's for good.

        An answer's go behind what is held, where nobody looks before `commit`.
        """
        super().write(layer, k, v, plan)
        for seq_id, rows in spans(plan):
            if self.ledger.length(seq_id):
                slots = plan.slot_mapping[rows]
                self.store.write(layer, slots, k[rows], v[rows], planned=True)
                self.counters.bytes_written += k[rows].nbytes + v[rows].nbytes

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends the new queries [T, Hq, D] to what is held and to the new tokens; [T, Hq, D].

        Raises:
            ValueError: the plan is closed, the layer not written, or as `KVStore.require_queries`.
        """
        new = self._new(layer, plan)
        self.store.require_queries(q, plan.host.num_tokens)
        out = torch.empty_like(q)
        for seq_id, rows in spans(plan):
            num_new = rows.stop - rows.start
            if not num_new:
                continue
            if self.ledger.length(seq_id):
                k, v, moves = self._answer(layer, seq_id, plan.positions[rows])
            else:
                k, v = (side[rows].transpose(0, 1) for side in new)
                moves = self._prompt(layer, q[rows], k, v)
            out[rows] = contiguous_attention(q[rows], k, v)
            self._choose(layer, plan, seq_id, moves)
            self.counters.bytes_read += k.nbytes + v.nbytes
            self.counters.kernels["sdpa_contiguous"] += 1
            if layer == 0:
                pairs = num_new * k.shape[1] - num_new * (num_new - 1) // 2
                self.counters.attention_pairs += pairs
        return out

    def _answer(self, layer: int, seq_id: SeqId, positions: Tensor) -> tuple[Tensor, Tensor, Moves]:
        """Keys and values [Hkv, Tk, D] a later step attends to; nothing moves for it."""
        row, num_held = self.ledger.row(seq_id), self.ledger.num_held(seq_id)
        total = num_held + len(positions)
        k, v = self.store.view(layer, row, total)
        slots = torch.arange(num_held, total, device=self.device).expand(len(k), -1)
        return k, v, Moves(slots, None, None, positions.expand(len(k), -1))

    def _prompt(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Moves:
        """Which tokens of a prompt stay in each head."""
        num_tokens, budget = len(q), self.ledger.budget
        if num_tokens <= budget:
            stay = torch.arange(num_tokens, device=self.device).expand(len(k), -1)
            return Moves(stay, k, v, stay)
        observe = self.ledger.recent
        seen = causal_mask(observe, num_tokens, device=q.device)
        weights = attention_weights(q[-observe:], [k], seen)
        self.weight_bytes += weights.nbytes
        pairs = observe * num_tokens - observe * (observe - 1) // 2
        self.counters.attention_pairs += pairs if layer == 0 else 0
        votes = weights.sum((1, 2))[:, None, :-observe]
        scores = avg_pool1d(votes, self.kernel, stride=1, padding=self.kernel // 2)[:, 0]
        scores[:, : self.ledger.sinks] = math.inf
        best = scores.topk(budget - observe, dim=1).indices.sort(dim=1).values
        last = torch.arange(num_tokens - observe, num_tokens, device=self.device)
        stay = torch.cat((best, last.expand(len(k), -1)), dim=1)
        slots = torch.arange(budget, device=self.device).expand_as(stay)
        return Moves(slots, gather(k, stay), gather(v, stay), stay)
