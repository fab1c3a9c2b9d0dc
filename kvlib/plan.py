"""The plan of one forward step, in plain integers: what every cache and every layer shares.

A *block* is a run of `block_size` slots; a *slot* is `block_id * block_size + offset`. A ledger
(contiguous or paged) makes the plan, the tensor half carries it out.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

SeqId = Hashable


class OutOfBlocks(RuntimeError):
    """Too few blocks are free now; the same call may succeed once something is freed."""


class SequenceTooLong(ValueError):
    """The sequence can never fit, however many others are freed."""


class BlockCopy(NamedTuple):
    """Copy the first `num_tokens` slots of block `src` into block `dst`."""

    src: int
    dst: int
    num_tokens: int


@dataclass(frozen=True)
class StepPlan:
    """What one forward step writes and reads, in plain integers, the same for every layer.

    Sequences are packed: the new tokens of sequence `s` are rows
    `[query_start[s], query_start[s + 1])` of the step. `T` counts new tokens, `S` sequences.

    Attributes:
        seq_ids: the `S` sequences of the step, in order; `None` for padding.
        positions: for each of the `T` new tokens its logical position in its sequence.
        slot_mapping: for each new token the physical slot its key and value go to.
        query_start: `S + 1` offsets into the packed tokens.
        context_lens: for each sequence its length once the step is committed.
        block_table: for each sequence its block ids, in logical order, padded to one width.
        block_size: slots per block.
        plan_id: names the plan to its ledger; padding keeps it.
        copies: blocks to copy before anything is written (copy-on-write).
    """

    seq_ids: tuple[SeqId, ...]
    positions: tuple[int, ...]
    slot_mapping: tuple[int, ...]
    query_start: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_table: tuple[tuple[int, ...], ...]
    block_size: int
    plan_id: int
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """How many new tokens the step forwards."""
        return len(self.positions)

    @property
    def num_seqs(self) -> int:
        """How many sequences take part."""
        return len(self.seq_ids)

    def pad(self, num_tokens: int, num_seqs: int, null_block_id: int) -> StepPlan:
        """Returns the same step with fixed shapes, as a captured graph needs them.

        Padding sequences are empty; padding tokens write into the null block, which belongs to
        nobody and is counted nowhere.

        Args:
            num_tokens: tokens after padding, at least `self.num_tokens`.
            num_seqs: sequences after padding, at least `self.num_seqs`.
            null_block_id: the block that takes the padding writes.

        Raises:
            ValueError: the step is larger than the shape asked for.
        """
        more_tokens, more_seqs = num_tokens - self.num_tokens, num_seqs - self.num_seqs
        if more_tokens < 0 or more_seqs < 0:
            raise ValueError(
                f"padding only grows a step: asked for {num_tokens} tokens in {num_seqs} sequences,"
                f" the step has {self.num_tokens} in {self.num_seqs}"
            )
        width = len(self.block_table[0]) if self.block_table else 1
        return replace(
            self,
            seq_ids=self.seq_ids + (None,) * more_seqs,
            positions=self.positions + (0,) * more_tokens,
            slot_mapping=self.slot_mapping + (null_block_id * self.block_size,) * more_tokens,
            query_start=self.query_start + self.query_start[-1:] * more_seqs,
            context_lens=self.context_lens + (0,) * more_seqs,
            block_table=self.block_table + ((null_block_id,) * width,) * more_seqs,
        )
