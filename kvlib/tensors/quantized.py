"""A paged cache of codes: full blocks in few bits, the last tokens in full precision."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from kvlib.paged_ledger import PagedLedger
from kvlib.plan import OutOfBlocks, SeqId, StepPlan
from kvlib.precision import Precision
from kvlib.sizes import KVShape, near, whole_number
from kvlib.tensors.attention import contiguous_attention
from kvlib.tensors.caches import LedgerCache
from kvlib.tensors.code_store import CodeStore
from kvlib.tensors.codes import narrowed
from kvlib.tensors.kernels import paged_cpu, quantized_cpu
from kvlib.tensors.kernels.build import NoCompiler
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.paged_attention import merge
from kvlib.tensors.quantized_plan import QuantizedPlan, Span

WAYS = ("cpu", "dequantize")
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
        self.way = _choose_way(way, torch.device(device), dtype)
        super().__init__(shape, ledger, num_seqs, block_size, dtype, device)
        formats = (keys, values)
        self.codes = CodeStore(shape, num_blocks, block_size, formats, dtype=dtype, device=device)
        self._rows: dict[SeqId, int] = {}
        self._free_rows = list(range(num_seqs))[::-1]
        self._row_table = torch.arange(num_seqs, dtype=torch.int32, device=device)[:, None]
        # By plan, then by layer: what has no room in a row yet.
        self._fresh: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes allocated for codes, scales and rows of full precision, used or not."""
        return self.store.nbytes + self.codes.nbytes

    @property
    def max_seq_len(self) -> int:
        """The longest sequence the whole pool could hold."""
        return self.ledger.max_seq_len

    def can_add(self) -> bool:
        """Answers whether a row of full precision is free."""
        return bool(self._free_rows)

    def add(self, seq_id: SeqId) -> None:
        """Takes a new, empty sequence.

        Raises:
            ValueError: the id is live already, or None.
            OutOfBlocks: all rows of full precision are taken. In each case nothing changes.
        """
        self._require_row(seq_id)
        self.ledger.add(seq_id)
        self._rows[seq_id] = self._free_rows.pop()

    def free(self, seq_id: SeqId) -> None:
        """Gives blocks and row back; raises as `PagedLedger.free`."""
        self.ledger.free(seq_id)
        self._free_rows.append(self._rows.pop(seq_id))

    def fork(self, parent: SeqId, child: SeqId) -> None:
        """Gives `child` the parent's tokens: shares its blocks, copies its row.

        Raises:
            KeyError, ValueError: as `PagedLedger.fork`.
            OutOfBlocks: all rows of full precision are taken. In each case nothing changes.
        """
        self._require_row(child)
        held = self._held_rows([parent])
        self.ledger.fork(parent, child)
        self._rows[child] = self._free_rows.pop()
        try:
            with Overwrites() as over:
                self._put_rows(over, {child: parent}, held)
        except BaseException:
            self.free(child)
            raise

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> None:
        """Lets each sequence continue another's tokens; raises as `PagedLedger.reorder`.

        If a copy fails, nothing has changed.
        """
        self.ledger.reorder_copies(sources)  # refuses what cannot be
        moved = {s: source for s, source in sources.items() if s != source}
        held = self._held_rows(moved.values())
        with Overwrites() as over:
            self._put_rows(over, moved, held)
            self.ledger.reorder(sources)

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first tokens, 0 resets the sequence; raises as `PagedLedger.truncate`.

        What is left of a full block is decoded into the row. If that fails, nothing has changed.
        """
        size, coded = self.ledger.block_size, self.length(seq_id) // self.ledger.block_size
        left = isinstance(num_tokens, int) and num_tokens % size
        heads: list[Tensor] = []
        if left and 0 < num_tokens < coded * size:
            block = self.ledger.table(seq_id)[num_tokens // size]
            heads = [self.codes.get(side, slice(None), [block])[:, 0] for side in range(2)]
        with Overwrites() as over:
            for head, into in zip(heads, self._row_sides(), strict=False):
                at = (slice(None), self._rows[seq_id], slice(None), slice(left))
                over.put(into, at, head[:, :, :left])
                self.counters.bytes_copied += left * self.store.bytes_per_token // 2
            self.ledger.truncate(seq_id, num_tokens)

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> QuantizedPlan:
        """Plans one step.

        Raises:
            KeyError, ValueError, SequenceTooLong, OutOfBlocks: as `PagedLedger.plan`. Nothing
                changes.
        """
        before = self.ledger.num_free
        host = self.ledger.plan(new)
        try:
            plan = self._plan_of(host)
        except BaseException:
            self.ledger.abort(host)
            raise
        self.counters.blocks_allocated += before - self.ledger.num_free
        return plan

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
            fresh = (k.clone(), v.clone())
            self._fresh.setdefault(plan.host.plan_id, {})[layer] = fresh
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
            out[plan.index] = self._by_kernel(layer, q[plan.index], plan)
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
        self._code_rows(full)
        for layer, sides in fresh.items():
            for span in full:
                self._code_fresh(layer, span, sides)
        # Only now: what a row held is coded, and can go, unless something fails still.
        with Overwrites() as over:
            for layer, sides in fresh.items():
                for span in full:
                    self._keep_rest(over, layer, span, sides)
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
        length = self.length(seq_id)
        coded = length - length % self.ledger.block_size
        blocks = self.ledger.table(seq_id)
        span = Span(slice(0, 0), self._rows[seq_id], blocks, coded, length, length)
        return tuple(self._side(layer, side, span, None) for side in range(2))

    def check(self) -> None:
        """Proves the ledger's invariants, and that every sequence has one row of its own.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        self.codes.check()
        self._check_noted(self._fresh)
        assert self._rows.keys() == set(self.ledger.seq_ids), "a row without a sequence"
        taken = sorted([*self._rows.values(), *self._free_rows])
        assert taken == list(range(len(self._row_table))), "a row is lost, or held twice"
        assert self.codes.num_blocks == self.ledger.pool.num_blocks, "codes are not ledger"

    def _require_row(self, seq_id: SeqId) -> None:
        if not self._free_rows:
            raise OutOfBlocks(
                f"sequence {seq_id!r} asked for a row of full precision, 0 free of"
                f" {len(self._row_table)}"
            )

    def _row_sides(self) -> tuple[Tensor, Tensor]:
        return self.store.keys, self.store.values

    def _held_rows(self, seq_ids: Iterable[SeqId]) -> list[Tensor]:
        """Copies of rows, made before anything changes, since they take memory.

        Sequences that are not live have none; the ledger refuses them next.
        """
        rows = [self._rows[s] for s in seq_ids if s in self._rows]
        return [side[:, rows] for side in self._row_sides()]

    def _put_rows(
        self, over: Overwrites, sources: Mapping[SeqId, SeqId], held: Sequence[Tensor]
    ) -> None:
        """Fills rows with what their sources held."""
        rows = [self._rows[s] for s in sources]
        for side, new in zip(self._row_sides(), held, strict=True):
            over.put(side, (slice(None), rows), new)
        tokens = sum(self.length(s) % self.ledger.block_size for s in sources.values())
        self.counters.bytes_copied += tokens * self.store.bytes_per_token

    def _plan_of(self, host: StepPlan) -> QuantizedPlan:
        rows = [self._rows[seq_id] for seq_id in host.seq_ids]
        return QuantizedPlan.of(host, self.device, rows)

    def _by_kernel(self, layer: int, q: Tensor, plan: QuantizedPlan) -> Tensor:
        """Codes by one kernel, recent tokens by another, merged by how much each part weighs."""
        codes = [side[layer] for side in self.codes.sides]
        formats, size = self.codes.formats, self.codes.block_size
        coded = quantized_cpu.attend_rows(q, *codes, formats, size, plan.table, plan.coded)
        rows = (side[layer] for side in self._row_sides())
        out, lse = paged_cpu.attend_rows(q.contiguous(), *rows, self._row_table, plan.recent)
        self.counters.kernels["quantized_cpu"] += 1
        per_token = self.store.bytes_per_token // len(self.store.keys)
        for s in plan.few:
            self._count_codes(plan.spans[s])
            self.counters.bytes_read += per_token * (plan.spans[s].after - plan.spans[s].coded)
        return narrowed(merge([coded, (out.float(), lse)])[0], q.dtype)

    def _count_codes(self, span: Span) -> None:
        self.counters.bytes_read += self.codes.block_bytes * (span.coded // self.codes.block_size)

    def _side(self, layer: int, side: int, span: Span, fresh: Tensor | None) -> Tensor:
        """Keys or values of a sequence, written down in full precision, [Hkv, tokens, D]."""
        blocks = span.blocks[: span.coded // self.ledger.block_size]
        coded = self.codes.get(side, layer, blocks).transpose(0, 1).flatten(1, 2)
        recent = self._row_sides()[side][layer, span.row]
        if fresh is None:
            return torch.cat([coded, recent[:, : span.after - span.coded]], 1)
        new = fresh[span.rows].transpose(0, 1)
        return torch.cat([coded, recent[:, : span.before - span.coded], new], 1)

    def _whole(self, layer: int, span: Span, plan: QuantizedPlan) -> tuple[Tensor, Tensor]:
        fresh = self._fresh.get(plan.host.plan_id, {}).get(layer, (None, None))
        k, v = (self._side(layer, side, span, new) for side, new in enumerate(fresh))
        self.counters.kernels["dequantize"] += 1
        self._count_codes(span)
        # Written down, and read once more by attention.
        self.counters.bytes_copied += k.nbytes + v.nbytes
        self.counters.bytes_read += k.nbytes + v.nbytes
        return k, v

    def _code_rows(self, full: Sequence[Span]) -> None:
        """Codes the rows that are full, in all layers at once."""
        if not full:
            return
        rows = [span.row for span in full]
        blocks = [span.blocks[span.coded // self.ledger.block_size] for span in full]
        for side, held in enumerate(self._row_sides()):
            written = self.codes.put(side, slice(None), blocks, held[:, rows])
            self.counters.bytes_written += written

    def _code_fresh(self, layer: int, span: Span, sides: tuple[Tensor, Tensor]) -> None:
        """Codes the full blocks behind the row."""
        size = self.ledger.block_size
        first, end = span.behind(size)
        blocks = list(span.blocks[span.coded // size + 1 : span.after // size])
        if not blocks:
            return
        for side, new in enumerate(sides):
            whole = new[first:end].unflatten(0, (len(blocks), size)).transpose(1, 2)
            self.counters.bytes_written += self.codes.put(side, layer, blocks, whole)

    def _keep_rest(
        self, over: Overwrites, layer: int, span: Span, sides: tuple[Tensor, Tensor]
    ) -> None:
        """Leaves the tokens behind the last full block in the row."""
        _, end = span.behind(self.ledger.block_size)
        for into, new in zip(self._row_sides(), sides, strict=True):
            rest = new[end : span.rows.stop]
            at = (slice(None), slice(len(rest)))
            over.put(into[layer, span.row], at, rest.transpose(0, 1))
            self.counters.bytes_written += rest.nbytes


def _choose_way(way: str | None, device: torch.device, dtype: torch.dtype) -> str:
    """Returns the way that was named, or the fastest there is."""
    if way is None:
        if device.type != "cpu" or dtype not in paged_cpu.TYPES:
            return "dequantize"
        try:
            quantized_cpu.kernel(0, 0)
            paged_cpu.kernel(dtype, 0, 0)
        except NoCompiler as error:
            _say_once(str(error))
            return "dequantize"
        return "cpu"
    if way not in WAYS:
        raise ValueError(near(way, WAYS, "way to attend"))
    if way == "cpu":
        if device.type != "cpu":
            raise ValueError(f"the way 'cpu' attends on a CPU, this cache is on {device}")
        quantized_cpu.kernel(0, 0)
    return way


@cache
def _say_once(reason: str) -> None:
    warnings.warn(f"dequantising in every step, without the CPU kernel: {reason}", stacklevel=4)
