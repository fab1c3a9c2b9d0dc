"""PyTorch's CUDA caching allocator against cudaMalloc: python measure/cuda_allocator.py.

The same traffic three ways, each in a process of its own, because the allocator reads its settings
once: cached, cached with expandable segments, and with every request passed on to the driver.
Without CUDA there is nothing to measure.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from heapq import heappop, heappush
from time import perf_counter
from typing import Any

import torch

import kvlib
from kvlib.workloads import sample
from record import spread, write

# One layer of Llama-3-8B in bfloat16: keys and values of 8 heads of 128, 2 bytes each.
BYTES_PER_TOKEN = 2 * 8 * 128 * 2
REQUESTS, RUNNING, PASSES = 1000, 12, 7
# The variable's older name is still read, and torch 2.11 knows it too.
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF"
WAYS = {
    "cached": {EXPANDABLE: "expandable_segments:False"},
    "expandable": {EXPANDABLE: "expandable_segments:True"},
    "raw": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}
ALLOCATED = "active_allocated"

Event = tuple[int, int]  # request, bytes; 0 bytes where it leaves


def traffic(requests: int = REQUESTS, running: int = RUNNING) -> list[Event]:
    """Returns requests that come as soon as another leaves; the last ones stay.

    Lengths are those of `azure-conv`, sampled, at most 2,048 tokens; a request stays for as many
    steps as its output is long.
    """
    events: list[Event] = []
    live: list[tuple[int, int]] = []
    clock = 0
    for number, each in enumerate(sample("azure-conv", n=requests, seed=0)):
        if len(live) == running:
            clock, gone = heappop(live)
            events.append((gone, 0))
        tokens = min(each.prompt_tokens + each.output_tokens, 2048)
        events.append((number, tokens * BYTES_PER_TOKEN))
        heappush(live, (clock + each.output_tokens, number))
    return events


def play(events: Sequence[Event], device: torch.device) -> dict[int, torch.Tensor]:
    """Allocates and frees as told; returns what is still there."""
    held: dict[int, torch.Tensor] = {}
    for request, size in events:
        if size:
            held[request] = torch.empty(size, dtype=torch.uint8, device=device)
        else:
            del held[request]
    return held


def reduced(segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns of each segment of `torch.cuda.memory_snapshot()` what can be drawn, by address.

    Blocks are pairs: bytes, and 1 where a tensor has them, else 0.
    """
    return [
        {
            "pool": segment["segment_type"],
            "bytes": segment["total_size"],
            "blocks": [[b["size"], int(b["state"] == ALLOCATED)] for b in segment["blocks"]],
        }
        for segment in sorted(segments, key=lambda segment: segment["address"])
    ]


def one_way() -> dict[str, Any]:
    """Plays the traffic in this process and returns times, bytes and the snapshot."""
    device, events = torch.device("cuda"), traffic()
    torch.cuda.synchronize(device)  # makes the context, which is not what is measured
    before, _ = torch.cuda.mem_get_info()
    times: list[float] = []
    held: dict[int, torch.Tensor] = {}
    for _ in range(PASSES + 1):
        held.clear()
        torch.cuda.synchronize()
        start = perf_counter()
        held = play(events, device)
        torch.cuda.synchronize()
        times.append((perf_counter() - start) / len(events))
    after, _ = torch.cuda.mem_get_info()
    return {
        "first_pass_event_s": float(f"{times[0]:.4g}"),
        "event_s": spread(times[1:]),
        "asked_bytes": sum(tensor.nbytes for tensor in held.values()),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "driver_bytes": before - after,
        "segments": reduced(torch.cuda.memory_snapshot()),
    }


def in_a_process(settings: dict[str, str]) -> dict[str, Any]:
    """Runs this script again under other settings of the allocator."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", EXPANDABLE)}
    done = subprocess.run(
        [sys.executable, __file__, "--one-way"],
        env=clean | settings,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Writes the record `cuda_allocator.cuda`, or says why not."""
    if "--one-way" in sys.argv:
        print(json.dumps(one_way()))
        return
    device = kvlib.device()
    if device.type != "cuda":
        print("cuda_allocator: not measured, it needs CUDA")
        return
    found = {way: in_a_process(settings) for way, settings in WAYS.items()}
    sizes = [size for _, size in traffic() if size]
    data = {
        "requests": REQUESTS,
        "running": RUNNING,
        "bytes_per_token": BYTES_PER_TOKEN,
        "median_request_bytes": int(statistics.median(sizes)),
        "ways": [{"way": way, **row} for way, row in found.items()],
    }
    write("cuda_allocator", data, ("kvlib/workloads.py", "measure/cuda_allocator.py"), device)


if __name__ == "__main__":
    main()
