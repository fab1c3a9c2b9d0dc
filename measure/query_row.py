"""Times one query row against the whole square, and measures each dtype's error.

    python measure/query_row.py

One attention layer of SmolLM2-135M's shape, without its projections. The row is what a decode step
computes; the square is what a program without a cache computes again for the same next token.
"""

from __future__ import annotations

import torch
from torch import Tensor

import kvlib
from kvlib.tensors.attention import contiguous_attention, reference_attention
from record import rounds, spread, times_faster, write

NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64
CONTEXTS = (64, 128, 256, 512, 1024, 2048)
ERROR_CONTEXT = 256
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
REPEATS = 11


def random_qkv(context: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Returns seeded queries [T, Hq, D], and keys and values [Hkv, T, D]."""
    torch.manual_seed(0)
    q = torch.randn(context, NUM_Q_HEADS, HEAD_DIM)
    k, v = torch.randn(2, NUM_KV_HEADS, context, HEAD_DIM)
    return q.to(device), k.to(device), v.to(device)


def times(context: int, device: torch.device) -> dict[str, object]:
    """Times the last row alone and all rows, over the same keys and values."""
    q, k, v = random_qkv(context, device)

    def attend(queries: Tensor) -> None:
        contiguous_attention(queries, k, v)
        if device.type == "cuda":
            torch.cuda.synchronize()

    ways = {"row_s": lambda: attend(q[-1:]), "square_s": lambda: attend(q)}
    seconds = rounds(ways, REPEATS)
    ratio = times_faster(seconds["square_s"], seconds["row_s"])
    return {"context": context, **{w: spread(s) for w, s in seconds.items()}, "ratio": ratio}


def error(dtype: torch.dtype, device: torch.device) -> dict[str, object]:
    """Returns the largest error against float64, as a share of the largest output."""
    q, k, v = (side.to(dtype) for side in random_qkv(ERROR_CONTEXT, device))
    expected, _ = reference_attention(q, k.transpose(0, 1), v.transpose(0, 1))
    shares = {}
    for name, rows in (("square", slice(None)), ("row", slice(-1, None))):
        off = (contiguous_attention(q[rows], k, v).double() - expected[rows]).abs().max()
        shares[name] = float(f"{(off / expected[rows].abs().max()).item():.2g}")
    return {"dtype": str(dtype).removeprefix("torch."), **shares}


def main() -> None:
    """Writes the record `query_row.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device = kvlib.device()
    shape = f"{NUM_Q_HEADS} query heads, {NUM_KV_HEADS} KV heads, head_dim {HEAD_DIM}"
    data = {
        "layer": f"one attention of SmolLM2-135M's shape: {shape}, float32",
        "repeats": REPEATS,
        "times": [times(context, device) for context in CONTEXTS],
        f"largest error at {ERROR_CONTEXT} tokens": [error(dtype, device) for dtype in DTYPES],
    }
    code = ("kvlib/tensors/attention.py", "measure/query_row.py")
    write("query_row", data, code, device)


if __name__ == "__main__":
    main()
