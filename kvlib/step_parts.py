"""What a step plan brings to each sequence: one new token or several, and which blocks it fills."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from kvlib.plan import StepPlan


def is_decode(plan: StepPlan) -> bool:
    """Answers whether no sequence of the step has more than one new token.

    Example:
        >>> from kvlib.paged_ledger import PagedLedger
        >>> ledger = PagedLedger(num_blocks=4, block_size=2)
        >>> ledger.add("a"); ledger.add("b")
        >>> step = ledger.plan({"a": [1, 2, 3], "b": [4]})
        >>> is_decode(step), single_lens(step), last_in_block(step)
        (False, [1], [1, 2, 3])
        >>> part, rows = part_of(step, single=True)
        >>> part.seq_ids, part.slot_mapping, rows
        (('b',), (4,), [3])
    """
    return all(end - start <= 1 for start, end in pairwise(plan.query_start))


def single_lens(plan: StepPlan) -> list[int]:
    """Returns the context lengths of the sequences that have one new token."""
    spans = zip(pairwise(plan.query_start), plan.context_lens, strict=True)
    return [length for (start, end), length in spans if end - start == 1]


def last_in_block(plan: StepPlan) -> list[int]:
    """Returns the step's tokens after which none comes into the same block: one for each block.

    Padding belongs to no sequence and is left out.
    """
    blocks = [slot // plan.block_size for slot in plan.slot_mapping[: plan.query_start[-1]]]
    last = len(blocks) - 1
    return [t for t, block in enumerate(blocks) if t == last or blocks[t + 1] != block]


def part_of(plan: StepPlan, single: bool) -> tuple[StepPlan, list[int]]:
    """Returns the sequences with one new token, or those with several, as a step of their own.

    Beside it the rows of the whole step that are theirs.
    """
    sizes = [end - start for start, end in pairwise(plan.query_start)]
    mine = [s for s, size in enumerate(sizes) if size and (size == 1) == single]
    rows = [t for s in mine for t in range(plan.query_start[s], plan.query_start[s + 1])]
    starts = [0]
    for s in mine:
        starts.append(starts[-1] + sizes[s])
    part = replace(
        plan,
        seq_ids=tuple(plan.seq_ids[s] for s in mine),
        positions=tuple(plan.positions[t] for t in rows),
        slot_mapping=tuple(plan.slot_mapping[t] for t in rows),
        query_start=tuple(starts),
        context_lens=tuple(plan.context_lens[s] for s in mine),
        block_table=tuple(plan.block_table[s] for s in mine),
    )
    return part, rows
