"""A step of five sequences in blocks of four, and what attention over it is by definition."""

import torch

from kvlib.plan import StepPlan
from kvlib.tensors.attention import reference_attention
from kvlib.tensors.paged_context import PagedContext

CPU = torch.device("cpu")
SIZE, DIM = 4, 8
# Sequences a to e: one new token behind 8, ten behind 3, none behind 2, eight alone, and padding.
NEW, LENGTHS = [1, 10, 0, 8, 0], [9, 13, 2, 8, 0]
TABLE = ((5, 1, 3, 12), (7, 0, 9, 2), (4, 12, 12, 12), (6, 8, 12, 12), (12, 12, 12, 12))


def host(**changes):
    positions = [
        length - new + i for length, new in zip(LENGTHS, NEW, strict=True) for i in range(new)
    ]
    starts = [0, 1, 11, 11, 19, 19]
    plan = {
        "seq_ids": ("a", "b", "c", "d", None),
        "positions": (*positions, 0, 0),  # two tokens of padding
        "slot_mapping": (0,) * 21,
        "query_start": tuple(starts),
        "context_lens": tuple(LENGTHS),
        "block_table": TABLE,
        "block_size": SIZE,
        "plan_id": 1,
    }
    return StepPlan(**{**plan, **changes})


def context(**changes):
    return PagedContext.of(host(**changes), CPU)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def everything(window=None, seed=0):
    """A step's queries, one layer of blocks, and what attention is by definition."""
    q, keys, values = (
        drawn(21, 6, DIM),
        drawn(13, 2, SIZE, DIM, seed=1),
        drawn(13, 2, SIZE, DIM, seed=2),
    )
    keys[12], values[12] = torch.nan, torch.nan  # the null block
    expected, lse = [], []
    for table, new, length, start in zip(TABLE, NEW, LENGTHS, (0, 1, 11, 11, 19), strict=True):
        if new:
            runs = (
                side[list(table)].transpose(1, 2).flatten(0, 1)[:length] for side in (keys, values)
            )
            out = reference_attention(q[start : start + new], *runs, window=window)
            expected.append(out[0]), lse.append(out[1])
    for side in (keys, values):  # what lies behind a sequence's tokens is never read
        side[3, :, 1:], side[2, :, 1:], side[4, :, 2:] = torch.nan, torch.nan, torch.nan
    return q, keys, values, torch.cat(expected), torch.cat(lse)
