"""What parts for languages cost on the whole azure-code trace: python measure/trace_code.py.

The trace does not say which language a request was in, so they are drawn, several times over: one
for each request, and, as a check on that, one for each minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvlib.request import Request
from kvlib.show.drawings.pool_partition import SHARES, SLOTS, languages, parts, rejected, serve
from whole_traces import load, record_figures

SEEDS = (0, 1, 2)
SIZES = (SLOTS, 2 * SLOTS)


def by_the_minute(requests: Sequence[Request], seed: int) -> list[str]:
    """Draws a language for each minute; all requests of a minute are in it."""
    drawn = languages(int(requests[-1].arrival_s // 60) + 1, seed)
    return [drawn[int(request.arrival_s // 60)] for request in requests]


def figures() -> dict[str, Any]:
    """Returns rejected requests in percent, by slots and parts: one figure for each drawing."""
    code = load("azure-code")
    ways = {
        "rejected": [languages(len(code), seed) for seed in SEEDS],
        "rejected_by_the_minute": [by_the_minute(code.requests, seed) for seed in SEEDS],
    }

    def percent(slots: int, partition: str, labels: list[str]) -> float:
        return round(rejected(serve(code, labels, parts(slots, partition))), 2)

    def by_parts(slots: int, drawings: list[list[str]]) -> dict[str, list[float]]:
        # One pool does not ask for the language.
        return {"shared": [percent(slots, "shared", drawings[0])]} | {
            partition: [percent(slots, partition, labels) for labels in drawings]
            for partition in ("proportional", "equal")
        }

    return {
        "num_requests": len(code),
        "source": code.source,
        "languages": SHARES,
    } | {
        way: {str(slots): by_parts(slots, drawings) for slots in SIZES}
        for way, drawings in ways.items()
    }


if __name__ == "__main__":
    counted = ("simulate.py", "fcfs.py", "show/drawings/pool_partition.py")
    files = (*(f"kvlib/{path}" for path in counted), "measure/trace_code.py")
    record_figures("trace_code", figures, ["azure-code"], files)
