"""Times decode attention over blocks against contiguous keys and values: measure/paged_speed.py.

Every row takes turns between torch's own attention on contiguous tensors, in two forms (query heads
repeated by `enable_gqa`, and the queries of one KV head grouped as rows), gathering blocks first,
and this project's kernel on blocks and on the same keys laid out contiguously. What each of them
reads is put out of the processor's caches before it, as it is in a real step, whose weights were
read since; its code stays there, as it ran for the layer before. The speed at which half a
gigabyte is read says what memory can give.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import kvlib
from kvlib.plan import StepPlan
from kvlib.tensors.aligned import aligned_empty
from kvlib.tensors.kernels import paged_cpu, paged_triton
from kvlib.tensors.paged_attention import gather
from kvlib.tensors.paged_context import PagedContext
from out_of_cache import READ_BYTES, putting_out
from record import rounds, spread, times_faster, write

HEADS = ((32, 8, 128), (9, 3, 64))  # query heads, KV heads, head_dim
POINTS = ((1, 512), (1, 8192), (8, 512), (8, 2048), (8, 8192), (32, 512), (32, 2048))
RAGGED = tuple(64 + round((4096 - 64) * i / 15) for i in range(16))
BLOCK_SIZE = 16
REPEATS = 7
FEW_BYTES = 2**27  # to gather, or to keep once more
MOST_BYTES = 6 * 2**28  # of one store


def filled(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Returns random numbers in memory that was allocated as a cache's store is."""
    return aligned_empty(shape, dtype.itemsize, dtype, device).normal_()


class Setting:
    """The same keys and values twice: in blocks in random order, and contiguous, padded."""

    def __init__(
        self, heads: tuple[int, int, int], lens: tuple[int, ...], dtype: torch.dtype, device: str
    ) -> None:
        self.heads = self.num_q, self.num_kv, self.head_dim = heads
        self.lens, self.longest = lens, max(lens)
        place = {"dtype": dtype, "device": device}
        blocks = [-(-n // BLOCK_SIZE) for n in lens]
        pool = (sum(blocks), self.num_kv, BLOCK_SIZE, self.head_dim)
        rows = (len(lens), self.num_kv, self.longest, self.head_dim)
        self.paged = [filled(pool, dtype, device) for _ in range(2)]
        self.contiguous = [filled(rows, dtype, device) for _ in range(2)]
        order = list(range(sum(blocks)))
        Random(0).shuffle(order)
        tables = [tuple(order.pop() for _ in range(n)) for n in blocks]
        width = max(blocks)
        self.q = torch.randn(len(lens), self.num_q, self.head_dim, **place)
        self.host = StepPlan(
            seq_ids=tuple(range(len(lens))),
            positions=tuple(n - 1 for n in lens),
            slot_mapping=(0,) * len(lens),
            query_start=tuple(range(len(lens) + 1)),
            context_lens=lens,
            block_table=tuple(t + (0,) * (width - len(t)) for t in tables),
            block_size=BLOCK_SIZE,
            plan_id=0,
        )
        self.context = PagedContext.of(self.host, torch.device(device))
        self.row_table = torch.arange(len(lens), dtype=torch.int32, device=device)[:, None]
        self.mask = None
        self.small_pages: list[Tensor] = []
        if device == "cpu" and self.kv_bytes <= FEW_BYTES:
            self.small_pages = [torch.empty(pool, dtype=dtype).copy_(side) for side in self.paged]
        if len(set(lens)) > 1:
            position = torch.arange(self.longest, device=device)
            self.mask = (position < torch.tensor(lens, device=device)[:, None])[:, None, None]

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that one step must read."""
        per_token = 2 * self.num_kv * self.head_dim * self.q.element_size()
        return sum(self.lens) * per_token

    def enable_gqa(self) -> Tensor:
        """Torch's attention, query heads as they are."""
        return scaled_dot_product_attention(
            self.q[:, :, None], *self.contiguous, attn_mask=self.mask, enable_gqa=True
        )

    def grouped(self) -> Tensor:
        """Torch's attention, the queries of one KV head as the rows of one small matrix."""
        group = self.num_q // self.num_kv
        grouped = self.q.view(len(self.lens), self.num_kv, group, self.head_dim)
        return scaled_dot_product_attention(grouped, *self.contiguous, attn_mask=self.mask)

    def gathered(self) -> Tensor:
        """Blocks copied into one run, then torch's attention."""
        return gather(self.q, *self.paged, self.context, None)[0]

    def kernel(self) -> Tensor:
        """This project's kernel, reading blocks where they lie."""
        attend = paged_cpu.attend_rows if self.q.device.type == "cpu" else paged_triton.attend_rows
        rows = self.context.rows_of(None)
        return attend(self.q, *self.paged, self.context.block_table, rows)[0]

    def kernel_small_pages(self) -> Tensor:
        """The same kernel and blocks, in the pages of 4 KiB that a tensor gets unasked."""
        rows = self.context.rows_of(None)
        table = self.context.block_table
        return paged_cpu.attend_rows(self.q, *self.small_pages, table, rows)[0]

    def kernel_contiguous(self) -> Tensor:
        """The same kernel on contiguous rows."""
        rows = self.context.rows_of(None)
        return paged_cpu.attend_rows(self.q, *self.contiguous, self.row_table, rows)[0]


def waiting(work: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Returns the work as a call that waits for the device."""

    def run() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return run


def all_ways(
    setting: Setting,
) -> tuple[dict[str, Callable[[], Tensor]], dict[str, Sequence[Tensor]]]:
    """Returns what takes turns, and what each of them reads; copies of all keys where few are."""
    device, few = setting.q.device.type, setting.kv_bytes <= FEW_BYTES
    ways = {"enable_gqa": setting.enable_gqa, "grouped": setting.grouped, "kernel": setting.kernel}
    reads: dict[str, Sequence[Tensor]] = dict.fromkeys(
        ("enable_gqa", "grouped"), setting.contiguous
    )
    reads["kernel"] = setting.paged
    if device == "cpu":
        ways["kernel_contiguous"] = setting.kernel_contiguous
        reads["kernel_contiguous"] = setting.contiguous
    if device == "cpu" and few:
        ways["kernel_small_pages"] = setting.kernel_small_pages
        reads["kernel_small_pages"] = setting.small_pages
    if few:
        ways["gather"], reads["gather"] = setting.gathered, setting.paged
    if setting.q.dtype == torch.bfloat16:
        full = Setting(setting.heads, setting.lens, torch.float32, device)
        ways["float32_enable_gqa"] = full.enable_gqa
        reads["float32_enable_gqa"] = full.contiguous
    return ways, reads


def row(
    heads: tuple[int, int, int],
    lens: tuple[int, ...],
    dtype: torch.dtype,
    read: Tensor,
) -> dict[str, object]:
    """Times one setting in turns with a read of a large set."""
    device = read.device
    setting = Setting(heads, lens, dtype, device.type)
    ways, reads = all_ways(setting)
    vector = torch.ones(read.shape[1], device=device)
    ways["read"], reads["read"] = lambda: read @ vector, (read,)
    calls = {name: waiting(work, device) for name, work in ways.items()}
    before = {name: putting_out(*tensors, after=calls[name]) for name, tensors in reads.items()}
    times = rounds(calls, REPEATS, before=before)
    kernel = times["kernel"]
    speed = [setting.kv_bytes / s / 1e9 for s in kernel]
    reads = [read.nbytes / s / 1e9 for s in times["read"]]
    against = {n: times_faster(t, kernel) for n, t in times.items() if n not in ("kernel", "read")}
    shares = sorted(a / b for a, b in zip(speed, reads, strict=True))
    return {
        "heads": heads,
        "dtype": str(dtype).removeprefix("torch."),
        "batch": len(lens),
        "context": max(lens) if len(set(lens)) == 1 else f"{min(lens)} to {max(lens)}",
        "kv_bytes": setting.kv_bytes,
        "threads": torch.get_num_threads(),
        "kernel_s": spread(kernel),
        "times_faster_than": against,
        "kernel_gb_s": spread(speed),
        "read_gb_s": spread(reads),
        "share_of_read": float(f"{shares[len(shares) // 2]:.3g}"),
    }


def main() -> None:
    """Writes the record `paged_speed.<device>`."""
    device = kvlib.device()
    rows = []
    for threads in (1, 2) if device.type == "cpu" else (1,):
        torch.set_num_threads(threads)
        read = filled((READ_BYTES // 4096, 1024), torch.float32, device.type)
        for heads in HEADS:
            for dtype in (torch.float32, torch.bfloat16):
                for batch, context in POINTS:
                    size = 2 * batch * context * heads[1] * heads[2] * 4
                    if size <= MOST_BYTES:
                        rows.append(row(heads, (context,) * batch, dtype, read))
                        print(rows[-1]["heads"], rows[-1]["times_faster_than"], file=sys.stderr)
                rows.append(row(heads, RAGGED, dtype, read))
    kernel = ("paged_cpu.cpp", "paged_cpu.py", "heads.h", "vectors.h", "work_items.h")
    code = tuple(f"kvlib/tensors/kernels/{name}" for name in kernel)
    if device.type == "cuda":
        code = ("kvlib/tensors/kernels/_paged_triton.py", "kvlib/tensors/kernels/paged_triton.py")
    data = {"block_size": BLOCK_SIZE, "repeats": REPEATS, "rows": rows}
    write("paged_speed", data, (*code, "measure/paged_speed.py"), device)


if __name__ == "__main__":
    main()
