"""Where the keys of a step's sequences lie, in blocks: what a way to attend is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlib.plan import StepPlan

Span = tuple[int, slice, int, int]


@dataclass(frozen=True)
class PagedContext:
    """Where the keys and values of a step's sequences are, on the device and on the host.

    `S` sequences, `M` blocks in the longest table.

    Attributes:
        host: the plan in plain integers.
        block_table: [S, M] int32, block ids in logical order, padded with the null block.
        context_lens: [S] int32, tokens each sequence has once the step is committed.
        query_start: [S + 1] int32, offsets of the sequences' new tokens.
    """

    host: StepPlan
    block_table: Tensor
    context_lens: Tensor
    query_start: Tensor
    _rows: dict[int | None, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _spans: dict[int | None, tuple[Span, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, host: StepPlan, device: torch.device) -> PagedContext:
        """Copies a plan's tables to a device, once for all layers.

        Raises:
            ValueError: a table has too few blocks for its sequence: a kernel would read beyond it.
        """
        for seq_id, blocks, length in zip(
            host.seq_ids, host.block_table, host.context_lens, strict=True
        ):
            if length > len(blocks) * host.block_size:
                raise ValueError(
                    f"the table of sequence {seq_id!r} has {len(blocks)} blocks of "
                    f"{host.block_size}, too short for its {length} tokens"
                )
        width = max(map(len, host.block_table), default=0)
        table = torch.tensor(host.block_table, dtype=torch.int32, device=device)
        lens = torch.tensor(host.context_lens, dtype=torch.int32, device=device)
        starts = torch.tensor(host.query_start, dtype=torch.int32, device=device)
        return cls(host, table.reshape(len(host.seq_ids), width), lens, starts)

    def spans(self, window: int | None) -> tuple[Span, ...]:
        """Returns for each sequence with new tokens its index, its rows, and what they see.

        Returns:
            For each `s`, the rows of the step, and the half-open range of positions `[first, end)`
            that any of its new tokens sees; made once for all layers.
        """
        if window not in self._spans:
            self._spans[window] = tuple(self._made_spans(window))
        return self._spans[window]

    def _made_spans(self, window: int | None) -> Iterator[Span]:
        starts = self.host.query_start
        for s, end in enumerate(self.host.context_lens):
            rows = slice(starts[s], starts[s + 1])
            num_queries = rows.stop - rows.start
            if num_queries:
                first = 0 if window is None else max(0, end - num_queries - window + 1)
                yield s, rows, first, end

    def rows_of(self, window: int | None) -> Tensor:
        """Returns for each new token its sequence and the positions it sees, [3, T] int32.

        The second row is the first position seen, the third one behind the last; padding tokens,
        which belong to no sequence, see nothing.
        """
        if window not in self._rows:
            starts, positions = self.host.query_start, self.host.positions
            owner = [
                s for s in range(len(self.host.seq_ids)) for _ in range(starts[s], starts[s + 1])
            ]
            end = [position + 1 for position in positions[: len(owner)]]
            first = [0 if window is None else max(0, e - window) for e in end]
            padding = [0] * (len(positions) - len(owner))
            made = [[*each, *padding] for each in (owner, first, end)]
            self._rows[window] = torch.tensor(
                made, dtype=torch.int32, device=self.block_table.device
            ).reshape(3, len(positions))
        return self._rows[window]

    def num_seen(self, window: int | None) -> int:
        """Returns how many tokens' keys the step reads, each sequence's once."""
        return sum(end - first for _, _, first, end in self.spans(window))
