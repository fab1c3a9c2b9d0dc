"""A paged cache of codes: full blocks in few bits, the last tokens in full precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from kvlib.paged_ledger import PagedLedger
from kvlib.plan import SeqId, StepPlan
from kvlib.precision import Precision
from kvlib.sizes import KVShape, whole_number
from kvlib.tensors.attention import contiguous_attention
from kvlib.tensors.caches import LedgerCache
from kvlib.tensors.code_store import CodeStore
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.quantized_plan import QuantizedPlan, Span
from kvlib.tensors.quantized_store import QuantizedStore
from kvlib.tensors.recent_rows import RecentRows
from kvlib.tensors.way_choice import choose_way_over_codes

KEYS, VALUES = Precision(8, along="channel"), Precision(8)


class QuantizedKVCache(LedgerCache):
    """Full blocks as codes of a few bits; a block is coded when its last token is committed.

    **Lossy.** A number of a full block is read back at most half a step off
    (`Precision.half_step` of its group's lowest and highest number). With half a step `h_d` of the
    keys in channel `d` a score is off by at most `e = sum_d |q_d| h_d / sqrt(D)`, and an output by
    at most `2 tanh(e / 2) max|v|` and half a step of the values.

    Up to `block_size - 1` last tokens of each sequence, and the new tokens of a step, are attended
    to in full precision. A step that brings more than its sequences' rows have room for holds the
    new keys and values of all layers until its commit, beside `nbytes`: prefill in pieces.

    What `truncate` cuts out of a full block is decoded, and coded once more when the block is full
    again: each time it may be off by another half step.

    Args:
        shape: layers, KV heads and head size.
        num_blocks: blocks of codes.
        block_size: tokens per block; along a channel also the numbers that share a scale.
        keys: format of the keys.
        values: format of the values.
        num_seqs: sequences, each with a row of `block_size` tokens in full precision.
        way: "cpu" reads codes in a compiled kernel, "dequantize" writes all keys and values down in
            full precision in every layer of every step; by default the kernel where there is one.
        dtype: of what comes in, of the rows, and of the outputs.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, the groups do not divide
            what they cut, there is no such way on this device, or the shape has no keys and values
            (MLA). Nothing is allocated.

    Source: keys by channel and values by token, with the last tokens in full precision, as in
    KIVI (Liu et al., 2024).

    Example:
        Two tokens fill a block, the third stays as it is. With 2 bits a row has four codes:

        >>> shape, two_bits = KVShape(1, 1, 4), Precision(2)
        >>> cache = QuantizedKVCache(shape, 2, block_size=2, values=two_bits, num_seqs=1)
        >>> cache.add("a")
        >>> with cache.step({"a": [7, 8, 9]}) as plan:
        ...     v = torch.tensor([[0.0, 3, 6, 9], [0, 4, 6, 9], [0, 4, 6, 9]])[:, None]
        ...     cache.write(0, v, v, plan)
        >>> k, v = cache.read("a", 0)
        >>> v[0].tolist()
        [[0.0, 3.0, 6.0, 9.0], [0.0, 3.0, 6.0, 9.0], [0.0, 4.0, 6.0, 9.0]]
    """

    lossy = True

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        block_size: int = 16,
        *,
        keys: Precision = KEYS,
        values: Precision = VALUES,
        num_seqs: int = 8,
        way: str | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        whole_number("num_seqs", num_seqs)
        ledger = PagedLedger(num_blocks, block_size)
        self.way = choose_way_over_codes(way, torch.device(device), dtype)
        super().__init__(shape, ledger, num_seqs, block_size, dtype, device)
        options = {"dtype": dtype, "device": device}
        self.codes = CodeStore(shape, num_blocks, block_size, (keys, values), **options)
        self.recent = RecentRows(self.store)
        self.held = QuantizedStore(self.recent, self.codes)
        # By plan, then by layer: what has no room in a row yet.
        self._fresh: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes allocated for codes, scales and rows of full precision, used or not."""
        return self.held.nbytes

    @property
    def max_seq_len(self) -> int:
        """The longest sequence the whole pool could hold."""
        return self.ledger.max_seq_len

    def can_add(self) -> bool:
        """Answers whether a row of full precision is free."""
        return bool(self.recent.num_free)

    def add(self, seq_id: SeqId) -> None:
        """Takes a new, empty sequence.

        Raises:
            ValueError: the id is live already, or None.
            OutOfBlocks: all rows of full precision are taken. In each case nothing changes.
        """
        self.recent.require_free(seq_id)
        self.ledger.add(seq_id)
        self.recent.take(seq_id)

    def free(self, seq_id: SeqId) -> None:
        """Gives blocks and row back; raises as `PagedLedger.free`."""
        self.ledger.free(seq_id)
        self.recent.give_back(seq_id)

    def fork(self, parent: SeqId, child: SeqId) -> None:
        """Gives `child` the parent's tokens: shares its blocks, copies its row.

        Raises:
            KeyError, ValueError: as `PagedLedger.fork`.
            OutOfBlocks: all rows of full precision are taken. In each case nothing changes.
        """
        self.recent.require_free(child)
        copies = self.recent.copied([parent])
        self.ledger.fork(parent, child)
        self.recent.take(child)
        try:
            with Overwrites() as over:
                self.recent.put(over, [child], copies)
                self._count_rows([parent])
        except BaseException:
            self.free(child)
            raise

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> None:
        """Lets each sequence continue another's tokens; raises as `PagedLedger.reorder`.

        If a copy fails, nothing has changed.
        """
        self.ledger.reorder_copies(sources)  # refuses what cannot be
        moved = {s: source for s, source in sources.items() if s != source}
        copies = self.recent.copied(moved.values())
        with Overwrites() as over:
            self.recent.put(over, moved, copies)
            self._count_rows(moved.values())
            self.ledger.reorder(sources)

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first tokens, 0 resets the sequence; raises as `PagedLedger.truncate`.

        What is left of a full block is decoded into the row. If that fails, nothing has changed.
        """
        size, coded = self.ledger.block_size, self.length(seq_id) // self.ledger.block_size
        left = isinstance(num_tokens, int) and num_tokens % size
        with Overwrites() as over:
            if left and 0 < num_tokens < coded * size:
                block = self.ledger.table(seq_id)[num_tokens // size]
                self.held.decode_begin(over, block, self.recent.row(seq_id), left)
                self.counters.bytes_copied += left * self.store.bytes_per_token
            self.ledger.truncate(seq_id, num_tokens)

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> QuantizedPlan:
        """Plans one step.

        Raises:
            KeyError, ValueError, SequenceTooLong, OutOfBlocks: as `PagedLedger.plan`. Nothing
                changes.
        """
        before = self.ledger.num_free
        plan = super().plan(new)
        self.counters.blocks_allocated += before - self.ledger.num_free
        return plan

    def _on_device(self, host: StepPlan) -> QuantizedPlan:
        rows = [self.recent.row(seq_id) for seq_id in host.seq_ids]
        return QuantizedPlan.of(host, self.device, rows)

    def write(self, layer: int, k: Tensor, v: Tensor, plan: QuantizedPlan) -> None:
        """Takes one layer's new keys and values [T, Hkv, D]; codes change at `commit` only.

        Raises:
            ValueError: the plan is closed, shape, dtype or device do not fit, or a number is not
                finite or too large for the format's scales. Nothing changes that counts: the slots
                behind a sequence's length hold nothing.
        """
        self.ledger.require_open(plan.host)
        self.codes.refuse(k, v, plan.host.num_tokens)
        whole = len(plan.near) == len(k)
        near = (k, v) if whole else (k[plan.near], v[plan.near])
        self.store.write(layer, plan.near_slots, *near, planned=True)
        self.note_written(plan, layer)
        self.counters.bytes_written += sum(each.nbytes for each in near)
        if not whole:
            # Copies: what came in is the caller's, who may use its memory again.
            self._fresh.setdefault(plan.host.plan_id, {})[layer] = (k.clone(), v.clone())
            self.counters.bytes_copied += k.nbytes + v.nbytes

    def attend(self, layer: int, q: Tensor, plan: QuantizedPlan) -> Tensor:
        """Attends the new queries [T, Hq, D] to all their sequences hold; returns [T, Hq, D].

        Raises:
            ValueError: the plan is closed, the layer not written, or as `KVStore.require_queries`.
        """
        self.ledger.require_open(plan.host)
        self._require_written(layer, plan)
        self.store.require_queries(q, plan.host.num_tokens)
        if layer == 0:
            self._count_pairs(plan.host)
        out = torch.empty_like(q)
        if self.way == "cpu" and plan.few:
            out[plan.index] = self.held.attend_few(layer, q[plan.index], plan)
            self._count_few(plan)
        for s, span in enumerate(plan.spans):
            if span.rows.start < span.rows.stop and not (self.way == "cpu" and s in plan.few):
                k, v = self._whole(layer, span, plan)
                out[span.rows] = contiguous_attention(q[span.rows], k, v)
        return out

    def commit(self, plan: QuantizedPlan) -> None:
        """Codes the blocks that are full now, keeps the rest in rows, and advances the lengths.

        Raises:
            ValueError: the plan is not open.
            RuntimeError: no memory to code in, or whatever a copy raises. The plan is open still,
                and may be committed again or aborted: blocks that are half coded lie behind what
                the lengths count as codes, and rows are as they were.
        """
        self._fill_unwritten(plan)
        fresh = self._fresh.get(plan.host.plan_id, {})
        full = [s for s in plan.spans if s.after - s.coded >= self.ledger.block_size]
        self.counters.bytes_written += self.held.code(full, fresh)
        # Only now: what a row held is coded, and can go, unless something fails still.
        with Overwrites() as over:
            self.counters.bytes_written += self.held.keep_rest(over, full, fresh)
            super().commit(plan)
        self._fresh.pop(plan.host.plan_id, None)

    def abort(self, plan: QuantizedPlan) -> None:
        """Forgets the plan; codes and lengths are as they were."""
        super().abort(plan)
        self._fresh.pop(plan.host.plan_id, None)

    def read(self, seq_id: SeqId, layer: int) -> tuple[Tensor, Tensor]:
        """Returns what is attended to for a sequence: keys and values [Hkv, length, D].

        Raises:
            KeyError: no such sequence.
        """
        length, blocks = self.length(seq_id), self.ledger.table(seq_id)
        span = Span.at_rest(self.recent.row(seq_id), blocks, length, self.ledger.block_size)
        return tuple(self.held.read(layer, side, span) for side in range(2))

    def check(self) -> None:
        """Proves the ledger's invariants, and that every sequence has one row of its own.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        self.codes.check()
        self._check_noted(self._fresh)
        self.recent.check(self.ledger.seq_ids)
        assert self.codes.num_blocks == self.ledger.pool.num_blocks, "codes are not ledger"

    def _count_rows(self, seq_ids: Iterable[SeqId]) -> None:
        tokens = sum(self.length(s) % self.ledger.block_size for s in seq_ids)
        self.counters.bytes_copied += tokens * self.store.bytes_per_token

    def _count_few(self, plan: QuantizedPlan) -> None:
        self.counters.kernels["quantized_cpu"] += 1
        per_token = self.store.bytes_per_token // len(self.store.keys)
        for span in (plan.spans[s] for s in plan.few):
            recent = per_token * (span.after - span.coded)
            self.counters.bytes_read += self.held.coded_bytes(span) + recent

    def _whole(self, layer: int, span: Span, plan: QuantizedPlan) -> tuple[Tensor, Tensor]:
        fresh = self._fresh.get(plan.host.plan_id, {}).get(layer, (None, None))
        k, v = (self.held.read(layer, side, span, new) for side, new in enumerate(fresh))
        self.counters.kernels["dequantize"] += 1
        # Written down, and read once more by attention.
        self.counters.bytes_copied += k.nbytes + v.nbytes
        self.counters.bytes_read += self.held.coded_bytes(span) + k.nbytes + v.nbytes
        return k, v
