"""The CUDA kernel, in Triton: each sequence split into runs that work side by side, then merged.

Decoding has one query a sequence, so a kernel with one program a sequence and head would leave most
of a GPU idle. Splitting the keys (as Flash-Decoding does) gives it work; the parts merge by their
log-sum-exp.

Source: Dao, Haziza, Massa and Sizov, "Flash-Decoding for long-context inference", 2023.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from kvlib.tensors.kernels.rows import require_groups, require_strides

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_DIMS = (32, 64, 80, 96, 128, 256)
BLOCK_SIZES = range(8, 257)
MAX_SPLITS, LEAST_SPLIT_TOKENS, PROGRAMS_PER_SM = 64, 256, 4


def interpreted() -> bool:
    """Answers whether Triton interprets kernels on the CPU (`TRITON_INTERPRET=1`)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def refusal(dtype: torch.dtype, head_dim: int, block_size: int) -> str:
    """Returns why the kernel does not take these sizes, or an empty string."""
    if dtype not in DTYPES:
        return f"dtypes are {[str(each)[6:] for each in DTYPES]}, got {dtype}"
    if head_dim not in HEAD_DIMS:
        return f"head_dim is one of {HEAD_DIMS}, got {head_dim}"
    if block_size not in BLOCK_SIZES:
        return f"block_size is 8 to 256, got {block_size}"
    return ""


def _tile_tokens(head_dim: int, dtype: torch.dtype) -> int:
    """Returns how many tokens a program reads at a time: about 16 KiB of keys."""
    return max(16, min(128, 2**14 // (_power_of_two(head_dim) * dtype.itemsize)))


def num_splits(rows: int, kv_heads: int, most_tokens: int, num_sms: int) -> int:
    """Returns into how many runs each sequence is split, from what the host knows without waiting.

    Args:
        rows: query tokens.
        kv_heads: KV heads.
        most_tokens: length that no sequence passes.
        num_sms: multiprocessors of the card.

    Example:
        One sequence of 8,192 tokens with 8 KV heads fills 132 multiprocessors by being split:

        >>> num_splits(1, 8, 8192, 132), num_splits(128, 8, 8192, 132)
        (32, 1)
    """
    wanted = -(-PROGRAMS_PER_SM * num_sms // max(1, rows * kv_heads))
    worth = max(1, most_tokens // LEAST_SPLIT_TOKENS)
    return max(1, min(wanted, worth, MAX_SPLITS)) if wanted > PROGRAMS_PER_SM else 1


def attend_rows(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    rows: Tensor,
    splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attends single query tokens to the positions each of them sees; the host never waits.

    Args:
        q: [R, Hq, D], contiguous.
        keys: [num_blocks, Hkv, block_size, D] with the last axis contiguous.
        values: alike, with the same strides.
        table: [S, M] int32: block ids of each sequence in logical order.
        rows: [3, R] int32: for each query token its sequence and the half-open range of positions
            it sees; an empty range gives zeros.
        splits: runs a sequence is split into; chosen by shape if not given.

    Returns:
        The output [R, Hq, D] in the dtype of `q`, and the log-sum-exp of the scores [R, Hq].

    Raises:
        ValueError: sizes that the kernel does not take. Nothing is launched.
        ImportError: triton is not installed.
    """
    _check(q, keys, values)
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads, block_size = keys.shape[1:3]
    from kvlib.tensors.kernels._paged_triton import attend_part, merge_parts

    group = num_q_heads // num_kv_heads
    if splits is None:
        most = table.shape[1] * block_size
        splits = num_splits(num_rows, num_kv_heads, most, _num_sms(q.device))
    parts = num_rows * num_kv_heads * splits * group
    place = {"dtype": torch.float32, "device": q.device}
    sums, peaks, totals = (torch.empty(parts, *d, **place) for d in ((head_dim,), (), ()))
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], **place)
    if not num_rows:
        return out, lse
    strides = (table.stride(0), keys.stride(0), keys.stride(1), keys.stride(2))
    attend_part[(num_rows, num_kv_heads, splits)](
        q, keys, values, table, *rows, sums, peaks, totals, head_dim**-0.5, *strides, splits,
        GROUP=group, GROUP_PAD=max(16, _power_of_two(group)), HEAD_DIM=head_dim,
        HEAD_PAD=_power_of_two(head_dim), BLOCK_SIZE=block_size,
        TILE=_tile_tokens(head_dim, q.dtype), UPCAST=interpreted(),
    )  # fmt: skip
    merge_parts[(num_rows * num_kv_heads, group)](
        sums, peaks, totals, out, lse, splits,
        GROUP=group, HEAD_DIM=head_dim, HEAD_PAD=_power_of_two(head_dim),
        SPLITS_PAD=_power_of_two(splits),
    )  # fmt: skip
    return out, lse


def _check(q: Tensor, keys: Tensor, values: Tensor) -> None:
    if reason := refusal(q.dtype, q.shape[2], keys.shape[2]):
        raise ValueError(f"the Triton kernel does not take this: {reason}")
    require_strides(q, keys, values)
    require_groups(q.shape[1], keys.shape[1])


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
