"""Reservations on whole traces: python measure/trace_reservations.py.

Percentiles learn from the first half of a trace, in order of arrival, and are judged on the second.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any

from kvlib.arena import Arena
from kvlib.buddy import power_of_two
from kvlib.request import Request
from kvlib.reservation import (
    Reservation,
    ReserveMaximum,
    ReserveOracle,
    ReservePercentile,
    ReservePowerOfTwo,
    judge,
    useful_share,
)
from kvlib.simulate import simulate
from whole_traces import load, record_figures

# The longest request of each trace, rounded up to a power of two.
LONGEST = {"azure-conv": 16_384, "azure-code": 8_192, "arxiv": 4_096, "mooncake-conv": 131_072}
MAXIMA = (1024, 2048, 4096, 8192, 16_384)
QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
# OPT-13B on a card with 40 GB, as in the PagedAttention paper's Table 1, and its context.
SLOTS, MAX_SEQ_LEN = 15_728, 2048
BLOCK_SIZE = 16
# Answers to learn from, and how many of the latest are left out: they may still be under way.
WINDOWS, UNDER_WAY = (100, 1000, 5000), 200


@dataclass(frozen=True)
class OneSize:
    """The same for everybody, and never less than the prompt and one token."""

    size: int
    max_seq_len: None = None

    def reserve(self, request: Request) -> int:
        """Returns the size, whatever the prompt, as long as it has room for it."""
        return max(self.size, request.prompt_tokens + 1)


def percent(share: float) -> float:
    """Rounds a share to a hundredth of a percent."""
    return round(100 * share, 2)


def cut(requests: Sequence[Request], max_seq_len: int) -> list[Request]:
    """Shortens what is longer than the model can take, first the prompt, to leave 48 tokens."""
    prompts = [min(r.prompt_tokens, max_seq_len - 48) for r in requests]
    return [
        Request(r.request_id, r.arrival_s, p, min(r.output_tokens, max_seq_len - p))
        for r, p in zip(requests, prompts, strict=True)
    ]


def useful(name: str, requests: Sequence[Request]) -> dict[str, Any]:
    """Percent of reserved slots that hold a token, while requests decode."""
    doubled, oracle = ReservePowerOfTwo(), ReserveOracle()
    shares = {
        "maximum": useful_share(ReserveMaximum(LONGEST[name]), requests),
        "power of two": useful_share(doubled, requests),
        "oracle": useful_share(oracle, requests),
        "power of two, rounded by a buddy": useful_share(doubled, requests, power_of_two),
        "oracle, rounded by a buddy": useful_share(oracle, requests, power_of_two),
    }
    return {"maximum": LONGEST[name], "percent": {k: percent(v) for k, v in shares.items()}}


def covered(requests: Sequence[Request]) -> dict[int, float]:
    """Percent of the requests that fit a fixed maximum."""
    finals = [r.prompt_tokens + r.output_tokens for r in requests]
    return {most: percent(sum(n <= most for n in finals) / len(finals)) for most in MAXIMA}


def judged(requests: Sequence[Request]) -> list[dict[str, Any]]:
    """What quantiles of the first half's outputs come to, on that half and on the second."""
    half = len(requests) // 2
    seen, later = requests[:half], requests[half:]
    rows = []
    for quantile in QUANTILES:
        policy = ReservePercentile([r.output_tokens for r in seen], quantile)
        rows.append(
            {
                "quantile": quantile,
                "output_tokens": policy.output_tokens,
                "seen_overflow_percent": percent(judge(policy, seen).overflow_share),
                **_verdict(policy, later),
            }
        )
    return rows


def one_size(requests: Sequence[Request]) -> dict[str, dict[str, float]]:
    """What the outline's two multiples of the first half's mean come to on the second half."""
    half = len(requests) // 2
    mean = fmean(r.prompt_tokens + r.output_tokens for r in requests[:half])
    sizes = {f"{factor} x mean": OneSize(int(factor * mean)) for factor in (2.0, 1.2)}
    return {name: _verdict(policy, requests[half:]) for name, policy in sizes.items()}


def _verdict(policy: Reservation, requests: Sequence[Request]) -> dict[str, float]:
    found = judge(policy, requests)
    return {
        "overflow_percent": percent(found.overflow_share),
        "unused_percent": percent(found.unused_share),
    }


def mean_answers(requests: Sequence[Request]) -> dict[str, float]:
    """Output tokens on average, by the length of the prompt."""
    ranges = {"below 500": (0, 500), "500 to 1,499": (500, 1500), "1,500 and more": (1500, 10**9)}
    return {
        name: round(fmean(r.output_tokens for r in requests if low <= r.prompt_tokens < high), 1)
        for name, (low, high) in ranges.items()
    }


def relearned(requests: Sequence[Request]) -> dict[int, dict[float, float]]:
    """Percent of the second half that outgrow a quantile learned anew before each request."""
    outputs = [r.output_tokens for r in requests]
    half = len(outputs) // 2
    found = {}
    for window in WINDOWS:
        start = half - UNDER_WAY - window
        seen, outgrown = sorted(outputs[start : start + window]), {0.25: 0, 0.75: 0}
        for i, output in enumerate(outputs[half:], start=start):
            for quantile in outgrown:
                outgrown[quantile] += output > seen[ceil(quantile * window) - 1]
            del seen[bisect_left(seen, outputs[i])]
            insort(seen, outputs[i + window])
        found[window] = {q: percent(n / (len(outputs) - half)) for q, n in outgrown.items()}
    return found


def served(requests: Sequence[Request]) -> dict[str, Any]:
    """Four reservations, the second half in line before one memory of contiguous pieces."""
    requests = cut(requests, MAX_SEQ_LEN)
    half = len(requests) // 2
    history = [r.output_tokens for r in requests[:half]]
    policies: dict[str, Reservation] = {
        "maximum": ReserveMaximum(MAX_SEQ_LEN),
        "power of two": ReservePowerOfTwo(MAX_SEQ_LEN),
        "quantile 0.9": ReservePercentile(history, 0.9, MAX_SEQ_LEN),
        "oracle": ReserveOracle(MAX_SEQ_LEN),
    }
    return {
        "mean_tokens": _mean_tokens(requests[half:]),
        **{name: _served(requests[half:], policy) for name, policy in policies.items()},
    }


def _mean_tokens(requests: Sequence[Request]) -> dict[str, float]:
    """Final tokens on average over the requests, and over the steps that they run."""
    finals = [r.prompt_tokens + r.output_tokens for r in requests]
    steps = [r.output_tokens for r in requests]
    by_step = sum(n * o for n, o in zip(finals, steps, strict=True)) / sum(steps)
    return {"by_request": round(fmean(finals), 1), "by_step": round(by_step, 1)}


def _served(requests: Sequence[Request], policy: Reservation) -> dict[str, Any]:
    run = simulate(requests, Arena(SLOTS), policy)
    return {
        "mean_running": round(run.mean_running, 2),
        "steps": run.steps,
        "percent": {part: percent(run.share(part)) for part in run.unit_steps},
        "overflowed": run.overflowed,
        "preempted": run.preempted,
        "done_twice_tokens": run.copied_tokens + run.recomputed_tokens,
        "waited_with_room": run.waited_with_room,
    }


def tail_waste(requests: Sequence[Request]) -> float:
    """Percent of the slots that stay empty in last blocks of 16, at the final length."""
    finals = [r.prompt_tokens + r.output_tokens for r in requests]
    reserved = sum(-(-n // BLOCK_SIZE) * BLOCK_SIZE for n in finals)
    return percent(1 - sum(finals) / reserved)


def figures() -> dict[str, Any]:
    """Everything the record holds of the traces."""
    whole = {name: load(name) for name in LONGEST}
    chat = whole["azure-conv"].requests
    return {
        "sources": {name: workload.source for name, workload in whole.items()},
        "useful": {name: useful(name, workload.requests) for name, workload in whole.items()},
        "covered": covered(chat),
        "halves": {"history": len(chat) // 2, "judged": len(chat) - len(chat) // 2},
        "judged": judged(chat),
        "one_size": one_size(chat),
        "relearned": relearned(chat),
        "mean_answers": mean_answers(chat),
        "served": {"slots": SLOTS, "max_seq_len": MAX_SEQ_LEN, **served(chat)},
        "tail_waste_percent": {name: tail_waste(w.requests) for name, w in whole.items()},
    }


if __name__ == "__main__":
    code = (
        "kvlib/fcfs.py",
        "kvlib/judgement.py",
        "kvlib/reservation.py",
        "kvlib/simulate.py",
        "measure/trace_reservations.py",
    )
    record_figures("trace_reservations", figures, LONGEST, code)
