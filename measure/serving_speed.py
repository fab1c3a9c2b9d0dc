"""Times serving a whole trace on one core: python measure/serving_speed.py.

The Azure conversation hour goes through a paged scheduler with a roofline clock, request by
request. Memory is what Llama-3-8B in bfloat16 leaves free of nine tenths of the card. The peak
of Python's memory in the run stands beside that of a quarter of the trace. A sample of the requests
is also served by a plain loop over a dictionary, which must come to the same counts; the ratio of
the two times is what a test watches.
"""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Iterable
from time import process_time

import torch

from kvlib.catalog import GPU, gpu, model
from kvlib.clock import RooflineClock
from kvlib.kv_memory import KVMemory
from kvlib.request import Request
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.serving_run import ServingRun
from kvlib.workloads import load
from record import ROOT, spread, times_faster, write

BLOCK_SIZE, UTILISATION, REPEATS = 16, 0.9, 5
MODEL = model("Llama-3-8B")
CODE = ("scheduler", "running_batch", "scheduled_step", "kv_memory", "blocks", "serving")
CODE += ("serving_run", "clock", "admission")


def num_blocks(card: GPU) -> int:
    """Returns the blocks beside the weights in nine tenths of a card."""
    free_bytes = UTILISATION * card.memory_bytes - MODEL.weight_bytes("bfloat16")
    return int(free_bytes // MODEL.kv.bytes_per_block(BLOCK_SIZE, "bfloat16"))


def serve_on(card: GPU, requests: Iterable[Request]) -> ServingRun:
    """Serves requests as vLLM V1 does by default on a large card, without a prefix index."""
    scheduler = Scheduler(
        KVMemory(num_blocks(card), BLOCK_SIZE),
        limits=StepLimits(max_tokens=8192, max_running=1024),
        max_seq_len=8192,
    )
    return serve(requests, scheduler, RooflineClock(card, MODEL))


def serve_at_once(requests: Iterable[Request], blocks: int) -> tuple[int, int, int]:
    """Serves requests that all come at once, without a clock; returns what `plain_loop` does."""
    limits = StepLimits(10**9, 10**9)
    run = serve(requests, Scheduler(KVMemory(blocks, BLOCK_SIZE), limits=limits))
    return run.steps, run.preempted, run.output_tokens


def plain_loop(requests: Iterable[Request], blocks: int) -> tuple[int, int, int]:
    """Counts the same run with a dictionary and a queue, every rule written out in it.

    First come, first served; prompts begin while their blocks are free; the newest loses its own.

    Returns:
        Steps, preemptions and output tokens.
    """
    rows = enumerate(requests)
    waiting = deque((i, r.prompt_tokens, r.prompt_tokens + r.output_tokens) for i, r in rows)
    running: dict[int, list[int]] = {}  # known tokens, tokens at the end, blocks
    free, steps, preempted, outputs = blocks, 0, 0, 0
    while waiting or running:
        lost = preempted
        for i in list(running):
            while i in running and running[i][0] > running[i][2] * BLOCK_SIZE:
                if free:
                    free -= 1
                    running[i][2] += 1
                else:
                    newest, (known, end, held) = running.popitem()
                    waiting.appendleft((newest, known, end))
                    free += held
                    preempted += 1
        while waiting and lost == preempted:
            i, known, end = waiting[0]
            wanted = -(-known // BLOCK_SIZE)
            if wanted > free:
                break
            waiting.popleft()
            running[i] = [known, end, wanted]
            free -= wanted
        for i, job in list(running.items()):
            job[0] += 1
            outputs += 1
            if job[0] == job[1]:
                free += running.pop(i)[2]
        steps += 1
    return steps, preempted, outputs


def seconds(work, *arguments) -> float:
    """Returns processor seconds: the machine may be busy with other things."""
    start = process_time()
    work(*arguments)
    return process_time() - start


def peak_bytes(card: GPU, requests: tuple[Request, ...]) -> int:
    """Returns the peak of Python's memory in a run over requests that exist already."""
    tracemalloc.start()
    serve_on(card, requests)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def row(card: GPU, requests: tuple[Request, ...]) -> dict[str, object]:
    """Times the whole trace, and what it came to."""
    times = [seconds(serve_on, card, requests) for _ in range(REPEATS)]
    run = serve_on(card, requests)
    return {
        "gpu": card.name,
        "blocks": num_blocks(card),
        "run_s": spread(times),
        "us_per_token": float(f"{1e6 * sorted(times)[REPEATS // 2] / run.output_tokens:.3g}"),
        "requests": run.num_requests,
        "finished": run.finished,
        "refused": run.refused,
        "output_tokens": run.output_tokens,
        "steps": run.steps,
        "preempted": run.preempted,
        "mean_running": round(run.mean_running, 1),
        "peak_bytes": peak_bytes(card, requests),
        "peak_bytes_of_a_quarter": peak_bytes(card, requests[: len(requests) // 4]),
    }


def ratio(requests: tuple[Request, ...], blocks: int) -> float:
    """Returns how many times as long as the plain loop serving takes, in turns."""
    pairs = [
        (seconds(serve_at_once, requests, blocks), seconds(plain_loop, requests, blocks))
        for _ in range(REPEATS)
    ]
    return times_faster([slow for slow, _ in pairs], [fast for _, fast in pairs])


def main() -> None:
    """Writes the record `serving_speed.cpu`."""
    torch.set_num_threads(1)
    trace = load("azure-conv", [ROOT.parent / "shared" / "data" / "traces"])
    data = {
        "trace": trace.name,
        "source": trace.source,
        "model": MODEL.name,
        "block_size": BLOCK_SIZE,
        "repeats": REPEATS,
        "rows": [row(gpu(name), trace.requests) for name in ("H100 SXM5", "A10")],
        "times_a_plain_loop": ratio(trace.requests[:2000], num_blocks(gpu("A10"))),
    }
    code = (*(f"kvlib/{name}.py" for name in CODE), "measure/serving_speed.py")
    write("serving_speed", data, code, torch.device("cpu"))


if __name__ == "__main__":
    main()
