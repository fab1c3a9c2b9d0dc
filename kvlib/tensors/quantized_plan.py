"""Where a quantised cache keeps what in a step: codes, rows of full precision, new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kvlib.plan import StepPlan
from kvlib.tensors.paged_attention import KERNEL_CHUNK
from kvlib.tensors.step import DevicePlan


class Span(NamedTuple):
    """What one sequence has and brings, in a step.

    Attributes:
        rows: its new tokens in the step.
        row: its row of full precision.
        blocks: its blocks, in order.
        coded: tokens that are stored as codes: a whole number of blocks.
        before: its length before the step.
        after: its length once the step is committed.
    """

    rows: slice
    row: int
    blocks: tuple[int, ...]
    coded: int
    before: int
    after: int

    @classmethod
    def at_rest(cls, row: int, blocks: tuple[int, ...], length: int, block_size: int) -> Span:
        """Returns what a sequence of some length has between steps, when it brings nothing."""
        return cls(slice(0, 0), row, blocks, length - length % block_size, length, length)

    def behind(self, block_size: int) -> tuple[int, int]:
        """Returns which new tokens lie in full blocks behind the row, as rows of the step.

        Example:
            Blocks of 4. Three tokens are held, eight come: one fills the row, four a block behind.

            >>> Span(slice(0, 8), 0, (5, 6, 7), coded=0, before=3, after=11).behind(4)
            (1, 5)
        """
        first = self.rows.start + self.coded + block_size - self.before
        return first, self.rows.stop - self.after % block_size


@dataclass(frozen=True)
class QuantizedPlan(DevicePlan):
    """A step plan with what lies where.

    Attributes:
        spans: by sequence.
        near: [N] int64, the new tokens that have room in their sequence's row of full precision.
        near_slots: [N] int64, their slots there.
        few: the spans that a kernel for single queries takes: few new tokens, all near.
        index: [R] int64, the new tokens of those spans.
        table: [S, M] int32, the step's block table.
        coded: [3, R] int32, for each of them its sequence and the codes it sees.
        recent: [3, R] int32, for each of them its row of full precision and what it sees there.
    """

    spans: tuple[Span, ...]
    near: Tensor
    near_slots: Tensor
    few: frozenset[int]
    index: Tensor
    table: Tensor
    coded: Tensor
    recent: Tensor

    @classmethod
    def of(cls, host: StepPlan, device: torch.device, rows: Sequence[int]) -> QuantizedPlan:
        """Says where everything is; `rows` are the sequences' rows of full precision."""
        size, spans = host.block_size, []
        near, slots, few, index, coded, recent = [], [], [], [], [], []
        for s, row in enumerate(rows):
            spans.append(span := _span(host, s, row))
            new = range(span.rows.start, span.rows.stop)
            offsets = [host.positions[t] - span.coded for t in new]
            inside = sum(offset < size for offset in offsets)
            near += new[:inside]
            slots += [row * size + offset for offset in offsets[:inside]]
            if 0 < len(new) <= KERNEL_CHUNK and inside == len(new):
                few.append(s)
                index += new
                coded += [(s, 0, span.coded)] * len(new)
                recent += [(row, 0, offset + 1) for offset in offsets]

        def of_three(each: list[tuple[int, int, int]]) -> Tensor:
            flat = torch.tensor(each, dtype=torch.int32, device=device)
            return flat.reshape(-1, 3).t().contiguous()

        longs = [torch.tensor(x, dtype=torch.int64, device=device) for x in (near, slots, index)]
        table = torch.tensor(host.block_table, dtype=torch.int32, device=device)
        plain = DevicePlan.of(host, device)
        return cls(
            host,
            plain.positions,
            plain.slot_mapping,
            plain.last_token,
            tuple(spans),
            *longs[:2],
            frozenset(few),
            longs[2],
            table.reshape(len(spans), -1) if spans else table.reshape(0, 0),
            of_three(coded),
            of_three(recent),
        )


def _span(host: StepPlan, s: int, row: int) -> Span:
    rows = slice(host.query_start[s], host.query_start[s + 1])
    after = host.context_lens[s]
    before = after - (rows.stop - rows.start)
    coded = before - before % host.block_size
    return Span(rows, row, host.block_table[s], coded, before, after)
