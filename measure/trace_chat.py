"""Load and lengths of the azure-conv trace, each with its spread: python measure/trace_chat.py."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median, pstdev
from typing import Any

from kvlib.request import Request
from resample import ratio_interval
from whole_traces import load, record_figures

STEP_S = 0.03
BLOCK_SIZE = 16
# Neighbouring minutes are alike; what is drawn anew is ten of them at a time.
PART_MINUTES = 10
RESERVATIONS = (2048, 4096, 8192, 16_384)


def minutes(requests: Sequence[Request]) -> list[list[Request]]:
    """Returns the requests by whole minutes; the part of a minute at the end is left out."""
    found: list[list[Request]] = [[] for _ in range(int(requests[-1].arrival_s // 60) + 1)]
    for r in requests:
        found[int(r.arrival_s // 60)].append(r)
    return found[:-1]


def peak_running(requests: Sequence[Request]) -> int:
    """Returns the most requests at once, each `output_tokens` steps long, no queue."""
    ends = ((r.arrival_s + STEP_S * r.output_tokens, -1) for r in requests)
    changes = sorted([(r.arrival_s, 1) for r in requests] + list(ends))
    return max(accumulate(change for _, change in changes))


def likeness(counts: Sequence[int]) -> float:
    """Returns the correlation between neighbours in a row of counts, from -1 to 1."""
    mean, n = fmean(counts), len(counts)
    products = ((a - mean) * (b - mean) for a, b in pairwise(counts))
    return sum(products) / (n * pstdev(counts) ** 2)


def saved_share(requests: Sequence[Request], reserved: int) -> tuple[int, float]:
    """Returns how many fit into `reserved` slots, and what blocks of 16 save of theirs.

    Each request counts once, at its final length.
    """
    fits = [n for r in requests if (n := r.prompt_tokens + r.output_tokens) <= reserved]
    paged = fmean(-(-n // BLOCK_SIZE) * BLOCK_SIZE for n in fits)
    return len(fits), 1 - paged / reserved


def reserving(requests: Sequence[Request], reserved: int) -> dict[str, float]:
    """Returns what a reservation of `reserved` slots refuses, and what blocks save against it."""
    num_fits, saved = saved_share(requests, reserved)
    return {
        "reserved": reserved,
        "fit_percent": round(100 * num_fits / len(requests), 2),
        "saved_percent": round(100 * saved, 1),
        "users": round(1 / (1 - saved), 2),
    }


def saving_target(requests: Sequence[Request]) -> dict[str, float]:
    """Returns the smallest reservation, in whole blocks, against which blocks save 65 %."""
    sizes = range(RESERVATIONS[0], RESERVATIONS[-1], BLOCK_SIZE)
    enough = bisect_left(sizes, 0.65, key=lambda n: saved_share(requests, n)[1])
    return reserving(requests, sizes[enough])


def figures() -> dict[str, Any]:
    """Returns the load, what runs at once by Little's law, and what reservations cost."""
    chat = load("azure-conv")
    requests, half = chat.requests, len(chat) // 2
    halves = (requests[:half], requests[half:])
    by_minute = minutes(requests)
    counts = [len(minute) for minute in by_minute]
    starts = range(0, len(by_minute), PART_MINUTES)
    parts = [by_minute[i : i + PART_MINUTES] for i in starts]

    def held(r: Request) -> float:
        """Token-seconds: half of the output stands in the cache on average."""
        return STEP_S * r.output_tokens * (r.prompt_tokens + r.output_tokens / 2)

    def per_second(weight: Callable[[Request], float], digits: int) -> dict[str, float]:
        sums = [(sum(sum(map(weight, m)) for m in part), 60 * len(part)) for part in parts]
        return ratio_interval(sums, digits)

    return {
        "num_requests": len(chat),
        "source": chat.source,
        "num_minutes": len(by_minute),
        "a_minute": [min(counts), max(counts)],
        "likeness": round(likeness(counts), 2),
        "rate_by_part": [round(sum(map(len, p)) / (60 * len(p)), 2) for p in parts],
        "rate": per_second(lambda r: 1, 2),
        "running": per_second(lambda r: STEP_S * r.output_tokens, 1),
        "peak_running": peak_running(requests),
        "held_tokens": per_second(held, 0),
        "tokens_a_second": per_second(lambda r: r.output_tokens, 0),
        "median_prompt": [median(r.prompt_tokens for r in part) for part in (requests, *halves)],
        "median_output": [median(r.output_tokens for r in part) for part in (requests, *halves)],
        "reserving": [reserving(requests, reserved) for reserved in RESERVATIONS],
        "saving_65": [saving_target(part) for part in (requests, *halves)],
    }


if __name__ == "__main__":
    code = ("measure/trace_chat.py", "measure/resample.py")
    record_figures("trace_chat", figures, ["azure-conv"], code)
