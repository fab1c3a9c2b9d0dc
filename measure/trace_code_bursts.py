"""What the bursts of the azure-code trace do to one memory: python measure/trace_code_bursts.py.

The same requests in the same order, once at their own times and once with Poisson arrivals of the
same rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import floor, log
from random import Random
from statistics import fmean, pstdev
from typing import Any

from kvlib.arena import Arena
from kvlib.request import Request
from kvlib.reservation import ReserveOracle
from kvlib.show.drawings.pool_partition import SLOTS, STEP_S
from kvlib.simulate import Simulation, simulate
from whole_traces import load, record_figures

SIZES = (SLOTS, 2 * SLOTS, 4 * SLOTS)


def poisson(requests: Sequence[Request], seed: int) -> list[Request]:
    """Returns the same requests, arriving at the same rate with independent gaps."""
    draw, mean_s = Random(f"poisson {seed}"), requests[-1].arrival_s / (len(requests) - 1)
    gaps = (-log(1 - draw.random()) * mean_s for _ in requests[1:])
    times = accumulate(gaps, initial=0.0)
    return [replace(r, arrival_s=round(t, 6)) for r, t in zip(requests, times, strict=True)]


def one_pool(requests: Sequence[Request], slots: int, patience: int | None) -> Simulation:
    """Serves the requests from one memory, each reserving exactly what it will need."""
    return simulate(requests, Arena(slots), ReserveOracle(), step_s=STEP_S, patience_steps=patience)


def wait_in_pieces(requests: Sequence[Request], slots: int) -> float:
    """Returns the mean wait in seconds if a request could take any free slots, in pieces.

    First come, first served as in `one_pool`, so what is left of its wait is no fragmentation.
    """
    held: list[tuple[int, int]] = []
    now, free, waited = 0, slots, 0
    for request in requests:
        size = request.prompt_tokens + request.output_tokens
        arrived = floor(request.arrival_s / STEP_S)
        now = max(now, arrived)
        while held and (held[0][0] <= now or free < size):
            ends, given_back = heappop(held)
            now, free = max(now, ends), free + given_back
        heappush(held, (now + request.output_tokens, size))
        free -= size
        waited += now - arrived
    return STEP_S * waited / len(requests)


def of(requests: Sequence[Request]) -> dict[str, Any]:
    """Returns what these arrivals are like, and what they do to memories of several sizes."""
    gaps = [b.arrival_s - a.arrival_s for a, b in pairwise(requests)]
    minutes = Counter(int(r.arrival_s // 60) for r in requests)
    waiting = {slots: one_pool(requests, slots, None) for slots in SIZES[:2]}
    return {
        "gap_cv": round(pstdev(gaps) / fmean(gaps), 2),
        "longest_gap_s": round(max(gaps)),
        "a_minute": [minutes[i] for i in range(max(minutes) + 1)],
        "turned_away": {
            str(s): round(100 * one_pool(requests, s, 0).turned_away / len(requests), 2)
            for s in SIZES
        },
        "mean_running": {str(s): round(run.mean_running, 2) for s, run in waiting.items()},
        # Nobody's, whether the next in line could use it or not.
        "unheld": {
            str(s): round(run.share("free") + run.share("external_fragmentation"), 3)
            for s, run in waiting.items()
        },
        "mean_wait_s": {
            str(s): round(STEP_S * run.waiting_steps / len(requests), 2)
            for s, run in waiting.items()
        },
        "mean_wait_in_pieces_s": {str(s): round(wait_in_pieces(requests, s), 2) for s in waiting},
        "peak_running": one_pool(requests, 64 * SLOTS, None).peak_running,
    }


def figures() -> dict[str, Any]:
    """Returns the two arrivals side by side."""
    code = load("azure-code")
    return {
        "source": code.source,
        "num_requests": len(code),
        "requests_per_s": round((len(code) - 1) / code.requests[-1].arrival_s, 3),
        "mean_output_tokens": round(fmean(r.output_tokens for r in code), 2),
        "trace": of(code.requests),
        "poisson": of(poisson(code.requests, seed=0)),
    }


if __name__ == "__main__":
    record_figures(
        "trace_code_bursts", figures, ["azure-code"],
        ("kvlib/simulate.py", "kvlib/fcfs.py", "measure/trace_code_bursts.py"),
    )  # fmt: skip
