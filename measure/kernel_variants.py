"""Times the kernel lab's ways to attend over blocks, in turns: python measure/kernel_variants.py.

Every way passes the lab's trials first. What it reads is put out of the processor's caches before
it; the library's own kernel is what the others are compared with. Bytes are those torch moves,
counted; a compiled kernel reads each key and value once.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import torch

import kvlib
from kvlib import measured
from kvlib.tensors import kernel_lab
from kvlib.tensors.kernel_lab import Attend, Setting
from kvlib.tensors.kernel_settings import trials
from kvlib.tensors.kernel_variants import block_major, compiled, split_kv
from kvlib.tensors.kernels import paged_triton
from kvlib.tensors.paged_attention import WAYS
from kvlib.tensors.paged_context import PagedContext
from out_of_cache import putting_out
from paged_speed import waiting
from record import ROOT, for_the_book, rounds, spread, times_faster, write

REPEATS = 5
RAGGED = tuple(64 + round((2048 - 64) * i / 7) for i in range(8))
POINTS = {
    "1 x 2,048": (2048,),
    "4 x 1,024": (1024,) * 4,
    "8 ragged, 64 to 2,048": RAGGED,
    "1 x 8,192": (8192,),
}
HEADS = {"SmolLM2-135M": (9, 3, 64), "Llama-3-8B": (32, 8, 128)}


def in_triton(splits: int | None) -> Attend:
    """Returns the Triton kernel with so many runs a sequence."""

    def attend(
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        context: PagedContext,
        window: int | None,
    ) -> torch.Tensor:
        rows = context.rows_of(window)
        return paged_triton.attend_rows(q, keys, values, context.block_table, rows, splits)[0]

    return attend


def variants(device: torch.device) -> dict[str, Attend]:
    """Returns the ways by the names that the page uses, the library's kernel first."""
    shared = {
        "gather": WAYS["gather"],
        "chunked": WAYS["chunked"],
        "block by block": block_major,
        "split in 4": split_kv,
    }
    if device.type == "cuda":
        own = {"kernel": WAYS["triton"], "one run": in_triton(1), "64 runs": in_triton(64)}
        return own | shared
    without = {
        "no prefetch": compiled(prefetch=False),
        "general loops": compiled(known_sizes=False),
    }
    return {"kernel": WAYS["cpu"]} | without | shared


def moved(way: Attend, step: Setting) -> int:
    """Returns the bytes that a way reads and writes; of a compiled one the keys and values."""
    if isinstance(way, kernel_lab.Contiguous):
        return sum(side.nbytes for side in way.rows)  # padded to the longest
    done = kernel_lab.work(way, step)
    return done.read_bytes + done.written_bytes if done.largest_bytes else step.kv_bytes


def row(model: str, point: str, device: torch.device) -> dict[str, object]:
    """Checks and times all ways at one point, in turns."""
    step = kernel_lab.setting(point, POINTS[point], HEADS[model], device=device)
    ways = variants(device)
    for name, way in ways.items():
        if fault := kernel_lab.check(way, [step]).first_fault:
            raise AssertionError(f"{name} is wrong at {fault}")
    reads = dict.fromkeys(ways, (step.keys, step.values))
    ways["contiguous"] = rows = kernel_lab.Contiguous(step)
    reads["contiguous"] = tuple(rows.rows)
    calls = {name: waiting(partial(step.run, way), device) for name, way in ways.items()}
    before = {name: putting_out(*reads[name], after=call) for name, call in calls.items()}
    times = rounds(calls, REPEATS, before=before)
    kernel = times["kernel"]
    return {
        "model": model,
        "heads": HEADS[model],
        "point": point,
        "kv_bytes": step.kv_bytes,
        "kernel_s": spread(kernel),
        "takes_times": {name: times_faster(each, kernel) for name, each in times.items()},
        "bytes_moved": {name: moved(way, step) for name, way in ways.items()},
    }


def keep_for_the_drawing() -> None:
    """Leaves the ratios and bytes of all records where the drawing finds them in a browser."""
    keys = ("model", "point", "kv_bytes", "takes_times", "bytes_moved")
    found = {device: measured.load(f"kernel_variants.{device}") for device in ("cpu", "cuda")}
    kept = {
        device: [{key: each[key] for key in keys} for each in record["data"]["rows"]]
        for device, record in found.items()
        if record
    }
    target = ROOT / "kvlib" / "data" / "kernel_variants.json"
    target.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Writes the record `kernel_variants.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device, rows = kvlib.device(), []
    for way in variants(device).values():
        assert (report := kernel_lab.check(way, trials(device))).passed, report
    for model in HEADS:
        for point in POINTS:
            rows.append(row(model, point, device))
            print(model, point, rows[-1]["takes_times"], file=sys.stderr)
    data = {"dtype": "float32", "block_size": 16, "repeats": REPEATS, "rows": rows}
    kernel = ("paged_cpu.cpp", "paged_cpu.py", "heads.h", "vectors.h", "work_items.h")
    if device.type == "cuda":
        kernel = ("_paged_triton.py", "paged_triton.py")
    code = (*(f"kvlib/tensors/kernels/{name}" for name in kernel), "measure/kernel_variants.py")
    write("kernel_variants", data, (*code, "kvlib/tensors/kernel_variants.py"), device)
    if for_the_book():
        keep_for_the_drawing()


if __name__ == "__main__":
    if sys.argv[1:] == ["keep"]:  # a record came from another machine
        keep_for_the_drawing()
    else:
        main()
