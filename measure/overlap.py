"""Times what copying and scheduling cost beside a forward pass: python measure/overlap.py.

A prefix lies in host memory and the rest of the prompt is to be computed. *In turns* waits for the
whole prefix first; *beside* lets each layer wait for its own part. The link is this machine's copy,
then slower links that a waiting lane stands for, chosen by the ratio of copying to computing.

Then the scheduler: *in turns* it plans a step, the model computes, it hears of it; *beside* it
assumes that the step under way will work, and plans the next one meanwhile. The forward pass is a
small model in a thread, which shares Python's lock and the memory with the scheduler, and a
device that takes 5 ms by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import torch

from kvlib.kv_memory import KVMemory
from kvlib.request import Request
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.tensors.copy_lane import CopyLane
from kvlib.tensors.device import device
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tensors.weights import load_model
from kvlib.tier import Tier
from record import spread, times_faster, wait, write

BLOCK_SIZE, PREFIX_BLOCKS, REST, REPEATS = 16, 12, 32, 7
RATIOS = (0.5, 1.0, 2.0)
RUNNING, STEPS, DEVICE_S = 2048, 20, 0.005
SMALL = LlamaConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_layers=4,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position_embeddings=1024,
)
CODE = ("tiered", "lower_tiers", "pending_copies", "copy_lane", "host_blocks", "paged")


def waits(on: torch.device) -> None:
    """Lets the host wait for the device."""
    if on.type == "cuda":
        torch.cuda.synchronize(on)


class Restoring:
    """Serves prompts that all begin alike, over one link."""

    def __init__(self, model: Llama, gb_s: float | None) -> None:
        host = Tier("host", 10**9, 10), HostBlocks(pinned=model.device.type == "cuda")
        self.model, self.random = model, random.Random(0)
        self.cache = TieredKVCache(
            model.kv_shape,
            64,
            BLOCK_SIZE,
            tiers=[host],
            lane=CopyLane(model.device, gb_s=gb_s),
            dtype=model.dtype,
            device=model.device,
        )
        self.prefix = [self.random.randrange(1000) for _ in range(PREFIX_BLOCKS * BLOCK_SIZE)]
        self.serve(whole_first=True)
        self.cache.drain()

    def serve(self, *, whole_first: bool) -> None:
        """Serves the common beginning with a rest that nobody has had."""
        self.begin(whole_first=whole_first)
        self.compute()

    def begin(self, *, whole_first: bool) -> None:
        """Brings the beginning up, or orders it."""
        self.text = self.prefix + [self.random.randrange(1000) for _ in range(REST)]
        self.cache.add("request", self.text)
        if whole_first:
            self.cache.drain()

    def compute(self) -> None:
        """Forwards what is missing, and ends the request."""
        new = self.text[self.cache.length("request") :]
        with self.cache.step({"request": new}) as plan:
            self.model(torch.tensor(new, device=self.model.device), self.cache, plan)
        waits(self.model.device)
        self.cache.free("request")

    def timed(self, *, whole_first: bool) -> tuple[float, float]:
        """Serves once; returns the seconds before the model begins, and those of all."""
        self.cache.drain()
        start = perf_counter()
        self.begin(whole_first=whole_first)
        begun = perf_counter()
        self.compute()
        return begun - start, perf_counter() - start


def link_row(model: Llama, gb_s: float | None) -> dict[str, object]:
    """Times one link in turns and beside, one after the other in each round."""
    one = Restoring(model, gb_s)
    turns, beside = [], []
    for round_ in range(-1, REPEATS):
        pair = one.timed(whole_first=True), one.timed(whole_first=False)
        if round_ >= 0:
            turns.append(pair[0])
            beside.append(pair[1][1])
    one.cache.close()
    return {
        "gb_s": gb_s and float(f"{gb_s:.3g}"),
        "copy_s": spread([copy for copy, _ in turns]),
        "compute_s": spread([whole - copy for copy, whole in turns]),
        "in_turns_s": spread([whole for _, whole in turns]),
        "beside_s": spread(beside),
        "times_faster": times_faster([whole for _, whole in turns], beside),
    }


def links(model: Llama) -> list[dict[str, object]]:
    """Times this machine's link, and slower ones by their ratio to the computation."""
    rows = [link_row(model, None)]
    prefix_bytes = PREFIX_BLOCKS * BLOCK_SIZE * model.kv_shape.bytes_per_token("float32")
    for ratio in RATIOS:
        seconds = ratio * rows[0]["compute_s"]["median"]
        rows.append({"ratio": ratio, **link_row(model, prefix_bytes / seconds / 1e9)})
    return rows


def crowd() -> Scheduler:
    """A scheduler with many requests that all decode."""
    scheduler = Scheduler(KVMemory(2 * RUNNING * 8, BLOCK_SIZE), limits=StepLimits(10**6, RUNNING))
    for i in range(RUNNING):
        scheduler.add(Request(i, None, prompt_tokens=8, output_tokens=1000))
    scheduler.report(scheduler.schedule())
    return scheduler


def steps(launch: Callable[[], Callable[[], object]], beside: bool) -> list[tuple[float, float]]:
    """Runs steps; returns the seconds of each, and of the scheduler in it.

    Args:
        launch: starts a forward pass and returns what waits for its end.
        beside: whether the scheduler works before that wait, or after it.
    """
    scheduler, times = crowd(), []
    step = scheduler.schedule()
    for _ in range(STEPS):
        begun = perf_counter()
        wait = launch()
        if not beside:
            wait()
        start = perf_counter()
        scheduler.report(step)  # beside: before it is known that the step worked
        step = scheduler.schedule()
        in_scheduler = perf_counter() - start
        wait()
        times.append((perf_counter() - begun, in_scheduler))
    return times


def a_device() -> Callable[[], object]:
    """Starts what takes its time without the processor; waiting for it keeps the processor busy."""
    end = perf_counter() + DEVICE_S

    def wait() -> None:
        while perf_counter() < end:
            pass

    return wait


def small_forward() -> Callable[[], None]:
    """A decode step of a small model for as many sequences."""
    model = Llama.random(SMALL, seed=0, device=device())
    cache = PagedKVCache(model.kv_shape, RUNNING * 2, BLOCK_SIZE, device=model.device)
    for i in range(RUNNING):
        cache.add(i)
    tokens = torch.ones(RUNNING, dtype=torch.int64, device=model.device)
    plan = cache.plan({i: [1] for i in range(RUNNING)})

    def forward() -> None:
        model(tokens, cache, plan)
        wait()

    return forward


def scheduling(
    name: str, launch: Callable[[], Callable[[], object]], repeats: int
) -> dict[str, object]:
    """Times steps in turns and beside."""
    seen: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(repeats):
        for beside in seen:
            seen[beside] += steps(launch, beside)
    return {
        "forward": name,
        "running": RUNNING,
        "in_turns_s": spread([whole for whole, _ in seen[False]]),
        "beside_s": spread([whole for whole, _ in seen[True]]),
        "scheduler_s": spread([part for _, part in seen[False]]),
        "scheduler_beside_s": spread([part for _, part in seen[True]]),
    }


def main() -> None:
    """Writes the record `overlap` of the chosen device."""
    torch.set_num_threads(1)
    model, _ = load_model(device=device())
    alone = scheduling("a device of its own", a_device, 5 * REPEATS)
    with ThreadPoolExecutor(1) as thread:
        forward = small_forward()
        small = scheduling("a small model", lambda: thread.submit(forward).result, REPEATS)
    data = {
        "model": "SmolLM2-135M-Instruct",
        "block_size": BLOCK_SIZE,
        "prefix_tokens": PREFIX_BLOCKS * BLOCK_SIZE,
        "rest_tokens": REST,
        "repeats": REPEATS,
        "links": links(model),
        "scheduling": [alone, small],
    }
    served = (f"kvlib/{name}.py" for name in ("scheduler", "running_batch", "scheduled_step"))
    code = (*(f"kvlib/tensors/{name}.py" for name in CODE), *served)
    write("overlap", data, (*code, "measure/overlap.py"), model.device)


if __name__ == "__main__":
    main()
