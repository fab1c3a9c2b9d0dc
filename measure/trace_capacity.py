"""Four ways of giving one memory to whole traces: python measure/trace_capacity.py.

The memory is scaled with the longest request, so that seven reservations of it fit in each case, as
in the PagedAttention paper's setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from kvlib.request import Request
from kvlib.show.drawings.budget_admission import (
    BLOCK_SIZE,
    FITS,
    LONGEST,
    WAYS,
    FourWay,
    serve,
    slots_of,
)
from kvlib.simulate import Simulation
from whole_traces import load, record_figures

TRACES = ("azure-conv", "mooncake-conv")
MEMORY = 7.68


def row(run: Simulation, parts: FourWay) -> dict[str, Any]:
    """Returns what the page shows of a run."""
    return {
        "percent": {part: round(100 * share, 1) for part, share in parts._asdict().items()},
        "mean_running": round(run.mean_running, 2),
        "finished": run.finished,
        "preempted": run.preempted,
        "recomputed_tokens": run.recomputed_tokens,
        "waited_with_room": run.waited_with_room,
    }


def capacity(name: str, requests: Sequence[Request]) -> dict[str, Any]:
    """Returns the four ways, the contiguous ones by both allocators."""
    slots, most = slots_of(name, MEMORY), LONGEST[name]

    def one(way: str, fit: str = "") -> dict[str, Any]:
        return row(*serve(requests, slots, most, way, fit))

    return {
        "slots": slots,
        "longest": most,
        "above_half_of_it": sum(2 * (r.prompt_tokens + r.output_tokens) > most for r in requests),
        "num_requests": len(requests),
        "mean_prompt": round(fmean(r.prompt_tokens for r in requests), 1),
        "mean_output": round(fmean(r.output_tokens for r in requests), 1),
        "contiguous": {fit: {way: one(way, fit) for way in WAYS if way != "paged"} for fit in FITS},
        "paged": one("paged"),
    }


def figures() -> dict[str, Any]:
    """Returns everything the record holds of the traces."""
    whole = {name: load(name) for name in TRACES}
    return {
        "block_size": BLOCK_SIZE,
        "sources": {name: workload.source for name, workload in whole.items()},
        "served": {name: capacity(name, workload.requests) for name, workload in whole.items()},
    }


if __name__ == "__main__":
    counted = ("fcfs.py", "paged_memory.py", "simulate.py", "show/drawings/budget_admission.py")
    code = (*(f"kvlib/{path}" for path in counted), "measure/trace_capacity.py")
    record_figures("trace_capacity", figures, TRACES, code)
