"""One rank's part of a step, where the tokens of every sequence are cut over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlib.plan import StepPlan
from kvlib.sharded_ledger import ShardedLedger
from kvlib.sharding import owner
from kvlib.tensors.step import DevicePlan


@dataclass(frozen=True)
class ShardPlan(DevicePlan):
    """A step plan on the device, with this rank's part of it.

    Attributes:
        part: the step as this rank's own ledger has it.
        mine: [N] int64, rows of the step whose keys and values are stored here.
        slots: [N] int64, where.
        table: [S, M] int32, this rank's blocks of each sequence.
        rows: [3, T] int32, for each new token its sequence and the range `[0, seen)` of this rank's
            tokens of it that it sees.
    """

    part: StepPlan
    mine: Tensor
    slots: Tensor
    table: Tensor
    rows: Tensor

    @classmethod
    def of(
        cls, host: StepPlan, ledger: ShardedLedger, rank: int, device: torch.device
    ) -> ShardPlan:
        """Finds a rank's part of a plan, and copies its index arrays to a device.

        Args:
            host: an open plan of `ledger`.
            ledger: of all ranks.
            rank: whose part.
            device: where the arrays go.
        """
        part, size = ledger.parts(host)[rank], ledger.num_ranks
        mine = [t for t, p in enumerate(host.positions) if owner(p, size, host.block_size) == rank]
        spans = enumerate(zip(host.query_start, host.query_start[1:], strict=False))
        owners = [s for s, (start, end) in spans for _ in range(start, end)]
        seen = [ledger.held(p + 1, rank) for p in host.positions]
        width = max(map(len, part.block_table), default=0)
        plain = DevicePlan.of(host, device)

        def made(values: Sequence, dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            host,
            plain.positions,
            plain.slot_mapping,
            plain.last_token,
            part,
            made(mine, torch.int64),
            made(part.slot_mapping, torch.int64),
            made(part.block_table, torch.int32).reshape(len(part.seq_ids), width),
            made([owners, [0] * len(owners), seen], torch.int32).reshape(3, len(owners)),
        )
