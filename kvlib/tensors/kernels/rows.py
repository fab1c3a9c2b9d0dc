"""Rows of query tokens and the table they look up: what every kernel for single queries takes.

A row names its sequence and the half-open range of positions that it sees. Axis letters: `S`
sequences, `M` blocks in the longest table, `R` rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def require_groups(num_q_heads: int, num_kv_heads: int) -> None:
    """Refuses heads of which no whole number shares a KV head.

    Raises:
        ValueError: there is no query head, or their number is no multiple of the KV heads'.
    """
    if num_q_heads == 0 or num_q_heads % num_kv_heads:
        raise ValueError(
            f"query heads must be a multiple of KV heads: {num_q_heads} and {num_kv_heads}"
        )


def require_strides(q: Tensor, keys: Tensor, values: Tensor) -> None:
    """Refuses tensors of which a kernel could not find the numbers.

    Args:
        q: [R, Hq, D].
        keys: [num_blocks, Hkv, block_size, D].
        values: alike.

    Raises:
        ValueError: the queries are not contiguous, a head's numbers not side by side, or keys and
            values laid out in two ways.
    """
    if not q.is_contiguous() or keys.stride(3) != 1 or keys.stride() != values.stride():
        raise ValueError(
            "q must be contiguous, keys and values alike with the last axis contiguous"
        )


def require_rows(table: Tensor, rows: Tensor, num_rows: int) -> None:
    """Refuses tables and rows that are laid out in another way than a kernel reads them.

    Args:
        table: [S, M] int32, contiguous: block ids of each sequence in logical order.
        rows: [3, R] int32, contiguous: for each query token its sequence (a row of the table) and
            the half-open range of positions it sees.
        num_rows: query tokens there are.

    Raises:
        ValueError: a shape, dtype or layout is another.
    """
    whole = table.dtype == rows.dtype == torch.int32 and rows.is_contiguous() and table.dim() == 2
    if not (whole and table.is_contiguous()) or tuple(rows.shape) != (3, num_rows):
        raise ValueError(
            f"table [S, M] and rows [3, {num_rows}] are int32, got {tuple(rows.shape)}"
        )


def addresses(rows: Tensor) -> tuple[int, int, int]:
    """Returns where the sequences, first positions and ends of rows [3, R] begin in memory."""
    first, step = rows.data_ptr(), rows.element_size() * rows.shape[1]
    return first, first + step, first + 2 * step


def constants(head_dim: int, group: int, known: Sequence[int]) -> tuple[int, int]:
    """Returns the sizes that a kernel is compiled for as constants, or zeros for general loops.

    Args:
        head_dim: numbers of a head, D.
        group: query heads of a KV head; up to 8 are met often.
        known: the head sizes that are met often.

    Example:
        >>> constants(64, 3, (64, 128)), constants(64, 9, (64, 128)), constants(72, 3, (64, 128))
        ((64, 3), (0, 0), (0, 0))
    """
    return (head_dim, group) if head_dim in known and group in range(1, 9) else (0, 0)


def require_done(
    refused: int, sizes: Sequence[int], table: Tensor, num_blocks: int, block_size: int
) -> None:
    """Says what a compiled kernel refused.

    Args:
        refused: what it returned; 0 if it did its work.
        sizes: what it was called with.
        table: [S, M].
        num_blocks: blocks there are.
        block_size: tokens of a block.

    Raises:
        ValueError: it was compiled for other sizes, or a row sees positions without a block.
    """
    if refused == 1:
        raise ValueError(f"the kernel was compiled for other sizes than {tuple(sizes)}")
    if refused:
        raise ValueError(
            f"a row sees positions without a block: there are {num_blocks} blocks of {block_size},"
            f" and a table of {len(table)} sequences, {table.shape[1]} blocks each"
        )
