"""What a quantised cache holds of its sequences: blocks of codes, and the tokens not coded yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

from kvlib.tensors import quantized_plan
from kvlib.tensors.attention_parts import merge
from kvlib.tensors.code_store import CodeStore
from kvlib.tensors.codes import narrowed
from kvlib.tensors.kernels import paged_cpu, quantized_cpu
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.quantized_plan import QuantizedPlan, Span
from kvlib.tensors.recent_rows import RecentRows

Sides = tuple[Tensor, Tensor]


class QuantizedStore:
    """Full blocks as codes, and beside them rows of full precision, in which blocks become full.

    It reads and writes where a `Span` says, and never asks who owns it. New tokens for which a row
    has no room come as `fresh`: by layer, keys and values of the step, each [T, Hkv, D].

    Args:
        recent: the rows.
        codes: blocks of codes, of as many tokens as a row has.
    """

    def __init__(self, recent: RecentRows, codes: CodeStore) -> None:
        self.recent, self.codes = recent, codes

    @property
    def nbytes(self) -> int:
        """Bytes allocated for codes, scales and rows, used or not."""
        return self.recent.store.nbytes + self.codes.nbytes

    def coded_bytes(self, span: Span) -> int:
        """Returns the bytes of a sequence's codes and scales in one layer."""
        return self.codes.block_bytes * (span.coded // self.codes.block_size)

    def read(
        self, layer: int, side: int, span: quantized_plan.Span, new: Tensor | None = None
    ) -> Tensor:
        """Returns keys or values of a sequence, written down in full precision.

        Args:
            layer: which layer.
            side: 0 for keys, 1 for values.
            span: what the sequence has and brings.
            new: [T, Hkv, D], this side of the step's tokens, where they are not all in rows.

        Returns:
            [Hkv, tokens, D].
        """
        blocks = span.blocks[: span.coded // self.codes.block_size]
        coded = self.codes.get(side, layer, blocks).transpose(0, 1).flatten(1, 2)
        recent = self.recent.sides[side][layer, span.row]
        if new is None:
            return torch.cat([coded, recent[:, : span.after - span.coded]], 1)
        mine = new[span.rows].transpose(0, 1)
        return torch.cat([coded, recent[:, : span.before - span.coded], mine], 1)

    def attend_few(self, layer: int, q: Tensor, plan: QuantizedPlan) -> Tensor:
        """Attends the few new tokens of `plan.few`, on the CPU, without decoding into memory.

        Codes by one kernel, recent tokens by another, merged by how much each part weighs.

        Args:
            layer: which layer.
            q: [R, Hq, D], of the tokens of `plan.index`.
            plan: where everything is.

        Returns:
            [R, Hq, D].
        """
        codes = [side[layer] for side in self.codes.sides]
        formats, size = self.codes.formats, self.codes.block_size
        coded = quantized_cpu.attend_rows(q, *codes, formats, size, plan.table, plan.coded)
        rows = (side[layer] for side in self.recent.sides)
        out, lse = paged_cpu.attend_rows(q.contiguous(), *rows, self.recent.table, plan.recent)
        return narrowed(merge([coded, (out.float(), lse)])[0], q.dtype)

    def decode_begin(self, over: Overwrites, block: int, row: int, num_tokens: int) -> None:
        """Decodes the first tokens of a block into a row, in all layers; `over` keeps what was."""
        heads = [self.codes.get(side, slice(None), [block])[:, 0] for side in range(2)]
        for head, into in zip(heads, self.recent.sides, strict=True):
            at = (slice(None), row, slice(None), slice(num_tokens))
            over.put(into, at, head[:, :, :num_tokens])

    def code(self, full: Sequence[Span], fresh: Mapping[int, Sides]) -> int:
        """Codes full rows, and the full blocks behind them; returns the bytes written.

        Args:
            full: of the sequences that fill their rows.
            fresh: new tokens for which rows have no room.
        """
        written = self._code_rows(full) if full else 0
        for layer, sides in fresh.items():
            written += sum(self._code_behind(layer, span, sides) for span in full)
        return written

    def keep_rest(self, over: Overwrites, full: Sequence[Span], fresh: Mapping[int, Sides]) -> int:
        """Leaves the tokens behind the last full block in the row; returns the bytes written.

        Args:
            over: keeps what is written over.
            full: of the sequences that fill their rows, which are coded.
            fresh: new tokens for which rows have no room.
        """
        written = 0
        for layer, sides in fresh.items():
            for span, (into, new) in product(full, zip(self.recent.sides, sides, strict=True)):
                rest = new[span.behind(self.codes.block_size)[1] : span.rows.stop]
                at = (slice(None), slice(len(rest)))
                over.put(into[layer, span.row], at, rest.transpose(0, 1))
                written += rest.nbytes
        return written

    def _code_rows(self, full: Sequence[Span]) -> int:
        """Codes rows that are full, in all layers at once."""
        rows = [span.row for span in full]
        blocks = [span.blocks[span.coded // self.codes.block_size] for span in full]
        sides = enumerate(self.recent.sides)
        return sum(self.codes.put(i, slice(None), blocks, held[:, rows]) for i, held in sides)

    def _code_behind(self, layer: int, span: Span, sides: Sides) -> int:
        """Codes the full blocks behind the row."""
        size = self.codes.block_size
        first, end = span.behind(size)
        blocks = list(span.blocks[span.coded // size + 1 : span.after // size])
        if not blocks:
            return 0
        whole = [new[first:end].unflatten(0, (len(blocks), size)) for new in sides]
        return sum(self.codes.put(i, layer, blocks, x.transpose(1, 2)) for i, x in enumerate(whole))
