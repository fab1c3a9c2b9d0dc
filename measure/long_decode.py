"""Decodes one layer of Llama-3-8B's shape at 131,072 tokens: python measure/long_decode.py.

About a gigabyte of keys and values in float32, read by one step; beside it, in turns, the reading
of as large a set, which says what memory can give. The model was published for 8,192 tokens: it is
the shape that is timed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import kvlib
from kvlib.tensors.paged_attention import paged_attention
from paged_speed import filled as random_numbers
from paged_speed import waiting
from record import rounds, spread, write

NUM_Q_HEADS, SHAPE = 32, kvlib.KVShape(num_layers=1, num_kv_heads=8, head_dim=128)
CONTEXT, BLOCK_SIZE, REPEATS = 131_072, 16, 7


def filled(dtype: torch.dtype, device: torch.device) -> kvlib.PagedKVCache:
    """Returns a cache whose only sequence is one token short of `CONTEXT`; its values are random.

    They must be written: memory that nobody wrote is not there yet.
    """
    place = {"dtype": dtype, "device": device}
    cache = kvlib.PagedKVCache(SHAPE, CONTEXT // BLOCK_SIZE, BLOCK_SIZE, **place)
    cache.store.keys.normal_()
    cache.store.values.normal_()
    cache.add("long")
    with cache.step({"long": [0] * (CONTEXT - 1)}):
        pass  # the length advances, the bytes are there
    return cache


def row(dtype: torch.dtype, device: torch.device) -> dict[str, object]:
    """Times the attention of one decode step in turns with a read of as many bytes."""
    cache = filled(dtype, device)
    q = torch.randn(1, NUM_Q_HEADS, SHAPE.head_dim, device=device).to(dtype)
    new = torch.randn(1, SHAPE.num_kv_heads, SHAPE.head_dim, device=device).to(dtype)
    with cache.step({"long": [0]}) as plan:
        cache.write(0, new, new, plan)
        before = cache.counters.snapshot()
        out = cache.attend(0, q, plan)
        num_bytes = cache.counters.since(before).bytes_read
        sides = cache.store.keys[0], cache.store.values[0]
        exact, _ = paged_attention(q, *sides, plan.context, way="reference")
        error = (out.double() - exact.double()).abs().max() / exact.double().abs().max()
        ways = {"attend": lambda: cache.attend(0, q, plan), "read": reading(num_bytes, device)}
        times = rounds({name: waiting(work, device) for name, work in ways.items()}, REPEATS)
    attend, read = ([num_bytes / s / 1e9 for s in times[way]] for way in ("attend", "read"))
    shares = sorted(a / b for a, b in zip(attend, read, strict=True))
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "way": cache.way,
        "threads": torch.get_num_threads(),
        "bytes_read": num_bytes,
        "attend_s": spread(times["attend"]),
        "attend_gb_s": spread(attend),
        "read_gb_s": spread(read),
        "share_of_read": float(f"{shares[len(shares) // 2]:.3g}"),
        "largest_error": float(f"{error.item():.2g}"),
    }


def reading(num_bytes: int, device: torch.device) -> Callable[[], Tensor]:
    """Returns a call that reads a set of so many bytes once: a matrix times a vector."""
    data = random_numbers((num_bytes // 4096, 1024), torch.float32, device.type)
    vector = torch.ones(1024, device=device)
    return lambda: data @ vector


def main() -> None:
    """Writes the record `long_decode.<device>`."""
    device, rows = kvlib.device(), []
    for threads in (1, 2) if device.type == "cpu" else (1,):
        torch.set_num_threads(threads)
        rows += [row(dtype, device) for dtype in (torch.float32, torch.bfloat16)]
    data = {
        "layer": f"one attention of Llama-3-8B's shape: {NUM_Q_HEADS} query heads, 8 KV heads",
        "context": CONTEXT,
        "block_size": BLOCK_SIZE,
        "repeats": REPEATS,
        "rows": rows,
    }
    kernels = ("paged_cpu.cpp", "paged_cpu.py", "heads.h", "vectors.h", "work_items.h")
    if device.type == "cuda":
        kernels = ("_paged_triton.py", "paged_triton.py")
    code = tuple(f"kvlib/tensors/kernels/{name}" for name in kernels)
    write("long_decode", data, (*code, "measure/long_decode.py"), device)


if __name__ == "__main__":
    main()
