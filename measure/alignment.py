"""Times reads of rows that are packed or aligned, and of two layouts: python measure/alignment.py.

The same numbers lie in memory at several row strides; each way of reading visits all strides in
turns. Where an alignment leaves the stride as it was, the ratio to packed rows says how large the
noise is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

import kvlib
from kvlib.tensors.aligned import aligned_empty
from kvlib.tensors.attention import contiguous_attention
from record import rounds, spread, times_faster, write

NUM_KV_HEADS, GROUP = 8, 4  # as Llama-3-8B
HEAD_DIMS = (64, 80, 96, 100, 120, 128)
ALIGNMENTS = (16, 64, 128, 256)
REPEATS = 7
# Of keys and values; the strides that take turns are far more together than a cache holds.
SET_BYTES = {"cpu": 2**27, "cuda": 2**30}


def run_waiting(work: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Returns a call that does the work and, on CUDA, waits for it."""

    def run() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def filled(
    shape: tuple[int, ...], alignment: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Returns keys and values at this alignment; unwritten memory is not there to be read."""
    return [aligned_empty(shape, alignment, dtype, device).normal_() for _ in range(2)]


def ways_of_reading(k: Tensor, v: Tensor, order: Tensor) -> dict[str, Callable[[], object]]:
    """Returns one decode query over all tokens, a copy of the keys, and two gathers of their rows.

    A view with padding is not contiguous, and a kernel may have a slower way for such tensors: so
    the rows are gathered head by head, which copies row after row, and in one call over all heads.

    Args:
        k: [Hkv, T, D].
        v: [Hkv, T, D].
        order: positions of all tokens, shuffled.
    """
    q = torch.ones(1, NUM_KV_HEADS * GROUP, k.shape[2], dtype=k.dtype, device=k.device)
    target = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    quarter = len(order) // 4
    # Another quarter of the rows each time: the same one again would be read from a cache.
    parts = cycle(order[: 4 * quarter].split(quarter))
    gathered = torch.empty(len(k), quarter, k.shape[2], dtype=k.dtype, device=k.device)

    def gather() -> None:
        part = next(parts)
        for head, out in zip(k, gathered, strict=True):
            torch.index_select(head, 0, part, out=out)

    return {
        "attention": lambda: contiguous_attention(q, k, v),
        "copy": lambda: target.copy_(k),
        "gather": gather,
        "gather_view": lambda: torch.index_select(k, 1, next(parts), out=gathered),
    }


def strides(head_dim: int, dtype: torch.dtype, device: torch.device) -> list[dict[str, object]]:
    """Times every way of reading at every alignment, packed rows (alignment 1) first."""
    num_tokens = SET_BYTES[device.type] // (2 * NUM_KV_HEADS * head_dim * dtype.itemsize)
    shape = (NUM_KV_HEADS, num_tokens, head_dim)
    order = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(0)).to(device)
    sides, calls = {}, {}
    for alignment in (1, *ALIGNMENTS):
        k, v = filled(shape, max(alignment, dtype.itemsize), dtype, device)
        sides[alignment] = k
        for way, work in ways_of_reading(k, v, order).items():
            calls.setdefault(way, {})[alignment] = run_waiting(work, device)
    times = {way: rounds(each, REPEATS) for way, each in calls.items()}
    found = []
    for alignment, k in sides.items():
        row = {"dtype": str(dtype).removeprefix("torch."), "head_dim": head_dim}
        row |= {"alignment": alignment, "stride_bytes": k.stride(1) * dtype.itemsize}
        for way, each in times.items():
            row[f"{way}_s"] = spread(each[alignment])
            row[f"{way}_over_packed"] = times_faster(each[alignment], each[1])
        found.append(row)
    return found


def put(rows: Tensor, positions: Tensor, new: Tensor) -> None:
    """Writes new tokens [T, Hkv, D], as a model hands them over, into rows [Hkv, slots, D]."""
    rows[:, positions] = new.transpose(0, 1)


def layouts(head_dim: int, dtype: torch.dtype, device: torch.device) -> dict[str, object]:
    """Times attention, and writes of scattered tokens: heads first (HND), tokens first (NHD)."""
    num_tokens = SET_BYTES[device.type] // (2 * NUM_KV_HEADS * head_dim * dtype.itemsize)
    heads_first = (NUM_KV_HEADS, num_tokens, head_dim)
    k, v = filled(heads_first, dtype.itemsize, dtype, device)
    sides = {"hnd": (k, v)}
    sides["nhd"] = tuple(side.transpose(0, 1).contiguous().transpose(0, 1) for side in (k, v))
    q = torch.ones(1, NUM_KV_HEADS * GROUP, head_dim, dtype=dtype, device=device)
    order = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(0)).to(device)
    positions = order[: num_tokens // 4]
    new = torch.ones(len(positions), NUM_KV_HEADS, head_dim, dtype=dtype, device=device)
    reads, writes = {}, {}
    for name, (k, v) in sides.items():
        attend = partial(contiguous_attention, q, k, v)
        reads[name] = run_waiting(attend, device)
        writes[name] = run_waiting(partial(put, k, positions, new), device)
    times = {"attention": rounds(reads, REPEATS), "write": rounds(writes, REPEATS)}
    row: dict[str, object] = {"dtype": str(dtype).removeprefix("torch."), "head_dim": head_dim}
    for way, each in times.items():
        row |= {f"{way}_{name}_s": spread(each[name]) for name in sides}
        row[f"{way}_nhd_over_hnd"] = times_faster(each["nhd"], each["hnd"])
    return row


def main() -> None:
    """Writes the record `alignment.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device, dtypes = kvlib.device(), (torch.float32, torch.bfloat16)
    data = {
        "heads": f"{NUM_KV_HEADS} KV heads, {NUM_KV_HEADS * GROUP} query heads, one layer",
        "set_bytes": SET_BYTES[device.type],
        "repeats": REPEATS,
        "rows": [row for t in dtypes for d in HEAD_DIMS for row in strides(d, t, device)],
        "layouts": [layouts(d, t, device) for t in dtypes for d in (64, 128)],
    }
    code = tuple(f"kvlib/tensors/{name}.py" for name in ("aligned", "store", "attention"))
    write("alignment", data, (*code, "measure/alignment.py"), device)


if __name__ == "__main__":
    main()
