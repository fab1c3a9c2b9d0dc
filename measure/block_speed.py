"""Times decode attention over blocks of several sizes, in turns: python measure/block_speed.py.

One piece of memory is read as blocks of every size, so that all of them move the same bytes; the
tables are in random order. On a CPU the same kernel also reads it as contiguous rows, which is
what paging is compared with; the Triton kernel takes blocks of 8 to 256, so that on a card the
largest stands for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

import kvlib
from kvlib.plan import StepPlan
from kvlib.tensors.kernels import paged_cpu, paged_triton
from kvlib.tensors.paged_attention import gather
from kvlib.tensors.paged_context import PagedContext
from paged_speed import filled, waiting
from record import ROOT, for_the_book, rounds, spread, times_faster, write

HEADS = ((32, 8, 128), (9, 3, 64))  # query heads, KV heads, head_dim
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
# A set that no processor's cache holds, and one that a large cache does.
SET_TOKENS = {(32, 8, 128): (2**16, 2**13), (9, 3, 64): (2**18, 2**15)}
CONTEXT = 2048
REPEATS, GATHER_BYTES = 9, 2**28


class Pool:
    """Keys and values of sequences of `CONTEXT` tokens, as blocks of any size."""

    def __init__(self, heads: tuple[int, int, int], num_tokens: int, device: torch.device) -> None:
        num_q, self.num_kv, self.head_dim = heads
        numbers = num_tokens * self.num_kv * self.head_dim
        self.batch, self.device = num_tokens // CONTEXT, device
        self.sides = [filled((numbers,), torch.float32, device.type) for _ in range(2)]
        self.q = torch.randn(self.batch, num_q, self.head_dim, device=device)

    def blocks(self, block_size: int) -> list[Tensor]:
        """Keys and values, [num_blocks, Hkv, block_size, D]."""
        return [side.view(-1, self.num_kv, block_size, self.head_dim) for side in self.sides]

    def context(self, block_size: int) -> PagedContext:
        """Tables in random order for a step of one new token a sequence."""
        each, ids = CONTEXT // block_size, list(range(self.batch * CONTEXT // block_size))
        Random(0).shuffle(ids)
        plan = StepPlan(
            seq_ids=tuple(range(self.batch)),
            positions=(CONTEXT - 1,) * self.batch,
            slot_mapping=(0,) * self.batch,
            query_start=tuple(range(self.batch + 1)),
            context_lens=(CONTEXT,) * self.batch,
            block_table=tuple(tuple(ids[i : i + each]) for i in range(0, len(ids), each)),
            block_size=block_size,
            plan_id=0,
        )
        return PagedContext.of(plan, self.device)

    def kernel(self, block_size: int) -> Callable[[], None]:
        """This project's kernel on blocks of this size; on whole rows for `CONTEXT`."""
        attend = (paged_triton if self.device.type == "cuda" else paged_cpu).attend_rows
        context, (keys, values) = self.context(block_size), self.blocks(block_size)
        table, rows = context.block_table, context.rows_of(None)
        return waiting(lambda: attend(self.q, keys, values, table, rows), self.device)

    def gathered(self, block_size: int) -> Callable[[], None]:
        """Blocks copied into one run, then torch's attention."""
        context, (keys, values) = self.context(block_size), self.blocks(block_size)
        return waiting(lambda: gather(self.q, keys, values, context, None), self.device)


def row(heads: tuple[int, int, int], num_tokens: int, device: torch.device) -> dict[str, object]:
    """Times all block sizes in turns; ratios are to whole rows, or to the largest block."""
    pool = Pool(heads, num_tokens, device)
    kv_bytes = sum(side.nbytes for side in pool.sides)
    sizes = [size for size in BLOCK_SIZES if device.type == "cpu" or size >= 8]
    anchor = CONTEXT if device.type == "cpu" else sizes[-1]
    ways = {size: pool.kernel(size) for size in dict.fromkeys([*sizes, anchor])}
    if kv_bytes <= GATHER_BYTES:
        ways |= {f"gather {size}": pool.gathered(size) for size in sizes}
    times = rounds({str(name): work for name, work in ways.items()}, REPEATS)
    against = times[str(anchor)]
    found = {
        "heads": heads,
        "batch": pool.batch,
        "context": CONTEXT,
        "kv_bytes": kv_bytes,
        "kernel_s": {str(size): spread(times[str(size)]) for size in [*sizes, anchor]},
        "kernel_takes_times": {
            str(size): times_faster(times[str(size)], against) for size in sizes
        },
    }
    if kv_bytes <= GATHER_BYTES:
        found["gather_takes_times"] = {
            str(size): times_faster(times[f"gather {size}"], against) for size in sizes
        }
    return found


def keep_for_the_drawing(rows: list[dict]) -> None:
    """Leaves the ratios of the first row where the drawing finds them in a reader's browser."""
    target = ROOT / "kvlib" / "data" / "block_speed.json"
    kept = {"record": "block_speed.cpu", "kernel_takes_times": rows[0]["kernel_takes_times"]}
    target.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Writes the record `block_speed.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device = kvlib.device()
    rows = [row(heads, tokens, device) for heads in HEADS for tokens in SET_TOKENS[heads]]
    kernel = ("paged_cpu.cpp", "paged_cpu.py", "heads.h", "vectors.h", "work_items.h")
    code = tuple(f"kvlib/tensors/kernels/{name}" for name in kernel)
    if device.type == "cuda":
        code = ("kvlib/tensors/kernels/_paged_triton.py", "kvlib/tensors/kernels/paged_triton.py")
    against = "contiguous rows" if device.type == "cpu" else f"blocks of {BLOCK_SIZES[-1]}"
    data = {"dtype": "float32", "repeats": REPEATS, "against": against, "rows": rows}
    write("block_speed", data, (*code, "measure/block_speed.py"), device)
    if device.type == "cpu" and for_the_book():
        keep_for_the_drawing(rows)


if __name__ == "__main__":
    main()
