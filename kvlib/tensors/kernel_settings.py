"""Decode steps over blocks, made up to try and to time a way to attend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from kvlib.plan import StepPlan
from kvlib.tensors.paged_context import PagedContext

RAGGED = (1, 16, 17, 511, 0, 300)
Attend = Callable[..., Any]


@dataclass(frozen=True)
class Setting:
    """One decode step over blocks: what a way to attend is given.

    Attributes:
        name: what it tries.
        q: [R, Hq, D], one row for each sequence that is not empty.
        keys: [num_blocks + 1, Hkv, block_size, D], NaN where no token is.
        values: alike.
        context: the tables.
        window: how many keys a query sees at most, itself included; None for all.
    """

    name: str
    q: Tensor = field(repr=False)
    keys: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    context: PagedContext = field(repr=False)
    window: int | None = None

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values that are seen, each once: no way reads fewer."""
        row = self.keys.shape[1] * self.keys.shape[3] * self.keys.element_size()
        return 2 * row * self.context.num_seen(self.window)

    def run(self, attend: Attend) -> Tensor:
        """Returns a way's output; of a pair the first."""
        found = attend(self.q, self.keys, self.values, self.context, self.window)
        return found[0] if isinstance(found, tuple) else found


def setting(
    name: str = "decode",
    lens: Sequence[int] = RAGGED,
    heads: tuple[int, int, int] = (6, 2, 32),
    *,
    block_size: int = 16,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    loud: float = 1.0,
    shared: int = 0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Setting:
    """Returns a decode step of sequences of these lengths, in blocks in random order.

    Args:
        name: what it tries.
        lens: tokens of each sequence, the new one included; an empty one has no query.
        heads: query heads, KV heads and head size.
        block_size: tokens of a block.
        window: as for attention.
        dtype: of queries, keys and values.
        loud: factor on the queries, and so on the scores.
        shared: leading blocks that all sequences have in common.
        seed: equal seeds give equal steps.
        device: where it lies.

    Example:
        >>> step = setting(lens=(1, 0, 17))
        >>> step.q.shape[0], step.context.host.query_start, step.kv_bytes
        (2, (0, 1, 1, 2), 9216)
    """
    num_q, num_kv, head_dim = heads
    tables = _tables(lens, block_size, shared, seed)
    null = _num_blocks(lens, block_size, shared)
    plan = _decode_plan(lens, tables, null, block_size)
    rng = torch.Generator().manual_seed(seed)
    sides = [torch.randn(null + 1, num_kv, block_size, head_dim, generator=rng) for _ in range(2)]
    written = torch.zeros(null + 1, block_size, dtype=torch.bool)
    for table, length in zip(tables, lens, strict=True):
        for at, block in enumerate(table):
            written[block, : length - at * block_size] = True
    for side in sides:
        side.masked_fill_(~written[:, None, :, None], torch.nan)
    q = loud * torch.randn(plan.num_tokens, num_q, head_dim, generator=rng)
    tensors = [each.to(device, dtype) for each in (q, *sides)]
    return Setting(name, *tensors, PagedContext.of(plan, torch.device(device)), window)


def _tables(lens: Sequence[int], block_size: int, shared: int, seed: int) -> list[tuple[int, ...]]:
    """The blocks of each sequence, drawn; the first are those that all have in common."""
    needed = [-(-n // block_size) for n in lens]
    order = list(range(_num_blocks(lens, block_size, shared)))
    Random(seed).shuffle(order)
    common = tuple(order.pop() for _ in range(shared))
    return [common[:n] + tuple(order.pop() for _ in range(max(0, n - shared))) for n in needed]


def _num_blocks(lens: Sequence[int], block_size: int, shared: int) -> int:
    """Blocks that the sequences have together."""
    return shared + sum(max(0, -(-n // block_size) - shared) for n in lens)


def _decode_plan(
    lens: Sequence[int], tables: Sequence[tuple[int, ...]], null: int, block_size: int
) -> StepPlan:
    """One new token of each sequence that is not empty; tables are padded with the null block."""
    held = [n > 0 for n in lens]
    width = max(*map(len, tables), 1)
    return StepPlan(
        seq_ids=tuple(range(len(lens))),
        positions=tuple(n - 1 for n in lens if n),
        slot_mapping=(0,) * sum(held),
        query_start=tuple(sum(held[:s]) for s in range(len(lens) + 1)),
        context_lens=tuple(lens),
        block_table=tuple(table + (null,) * (width - len(table)) for table in tables),
        block_size=block_size,
        plan_id=0,
    )


def trials(device: torch.device | str = "cpu") -> list[Setting]:
    """Returns what `check` tries, the simplest first.

    Args:
        device: where they lie.
    """
    made = partial(setting, device=device)
    return [
        made("one block", (5,), (2, 2, 32)),
        made("ragged lengths", RAGGED, (2, 2, 32)),
        made("query heads share keys", RAGGED, (6, 2, 32)),
        made("other sizes", (9, 64, 33), (9, 3, 64), block_size=8, seed=1),
        made("a shared beginning", (40, 45, 33), shared=2, seed=2),
        made("a window of 20", RAGGED, window=20, seed=3),
        made("a window of 1", RAGGED, window=1, seed=4),
        made("loud scores", RAGGED, loud=60.0, seed=5),
        made("bfloat16", RAGGED, dtype=torch.bfloat16, seed=6),
    ]


def timing_step(lens: Sequence[int] = (1024,) * 4) -> Setting:
    """Returns the step that `work` and `time` take by default: SmolLM2's heads, four sequences."""
    return setting("decode", lens, (9, 3, 64))
