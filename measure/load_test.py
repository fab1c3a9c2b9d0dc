"""Puts the small engine under load in real time: python measure/load_test.py.

SmolLM2-135M on one thread cannot serve chats of a thousand tokens. Lengths are drawn from
azure-conv's quantiles and divided by 16; rates are shares of what this machine can do, which is
measured first, with users who never pause. The target is five times what a request takes alone. So
the record speaks of shapes that another machine shares: where the knee is, and what a closed loop
hides. One stall, longer than half of the schedule, is made by sleeping in a step. Three to four
minutes on a quiet machine; `python measure/load_test.py 6` is a quick try.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import torch

import kvlib
from kvlib.arrivals import at_rate
from kvlib.load_run import LoadRun
from kvlib.load_test import load_test
from kvlib.request import Request
from kvlib.scheduled_step import Step, StepLimits
from kvlib.serving_run import Target
from kvlib.tensors.engine import Engine
from kvlib.tensors.llama import Llama
from kvlib.tensors.load_server import EngineServer
from kvlib.workloads import sample
from record import write

TRACE, SHRINK, REQUESTS, SEEDS = "azure-conv", 16, 20, (0, 1, 2)
SHARES = (0.5, 0.8, 1.1, 1.5)
NUM_BLOCKS, BLOCK_SIZE = 1024, 16
LIMITS = StepLimits(max_tokens=128, max_running=32)
SLACK, USERS = 5.0, 2
STALL_REQUESTS, STALL_SHARE, STALL_LENGTH = 12, 0.5, 0.7  # of the time that they are due in
CODE = ("kvlib/load_test.py", "kvlib/load_run.py", "kvlib/percentiles.py")
CODE += ("kvlib/tensors/load_server.py", "kvlib/tensors/engine.py", "kvlib/scheduler.py")
CODE += ("kvlib/running_batch.py", "kvlib/scheduled_step.py", "measure/load_test.py")


def requests_of(seed: int, n: int) -> list[Request]:
    """Returns requests of the trace's shape, short enough for a processor, without times."""

    def less(tokens: int) -> int:
        return max(2, tokens // SHRINK)

    return [
        replace(
            r,
            arrival_s=None,
            prompt_tokens=less(r.prompt_tokens),
            output_tokens=less(r.output_tokens),
        )
        for r in sample(TRACE, n, seed)
    ]


def server(model: Llama, stall: tuple[float, float] | None = None) -> EngineServer:
    """Returns an idle engine; `stall`: after how many seconds one step takes how many longer."""
    began, left = time.monotonic(), [stall] if stall else []

    def sleep(step: Step) -> None:
        if left and time.monotonic() - began >= left[0][0]:
            time.sleep(left.pop()[1])

    options = {"limits": LIMITS, "prefix_caching": False, "on_step": sleep}
    return EngineServer(Engine(model, NUM_BLOCKS, BLOCK_SIZE, **options))


def digits(value: float) -> float | None:
    """Rounds to four digits; what never came is None."""
    return float(f"{value:.4g}") if value < float("inf") else None


def row(run: LoadRun, target: Target) -> dict[str, Any]:
    """Returns what the page shows of a run, and both sides of Little's law."""
    stays = [t.stay_s for t in run.timings]
    rate = len(stays) / run.duration_s
    figures = {f"ttft_p{p}_s": run.ttft_s(p) for p in (50, 90, 100)}
    figures |= {f"tpot_p{p}_s": run.tpot_s(p) for p in (50, 90)}
    figures |= {"good_share": run.good_share(target), "goodput": run.goodput(target)}
    figures |= {"in_system": run.mean_in_system, "rate_times_stay": rate * sum(stays) / len(stays)}
    counts = {"refused": run.refused, "preempted": run.preempted}
    return {name: digits(value) for name, value in figures.items()} | counts


def alone(model: Llama, n: int) -> Target:
    """Returns the target: five times what requests take one after the other."""
    run = load_test(server(model), requests_of(0, n), users=1)
    return Target(SLACK * run.ttft_s(50), SLACK * run.tpot_s(50))


def sweep(model: Llama, n: int, capacity: float, target: Target) -> list[dict[str, Any]]:
    """Tests each rate with each seed, the seeds outside so that a busy moment meets all rates."""
    rows = {share: {"share": share, "rate": digits(share * capacity)} for share in SHARES}
    for seed in SEEDS:
        for share in SHARES:
            due = at_rate(requests_of(seed, n), share * capacity, seed)
            rows[share].setdefault("runs", []).append(row(load_test(server(model), due), target))
    return list(rows.values())


def stalled(model: Llama, n: int, capacity: float) -> dict[str, Any]:
    """Tests a calm rate with a stall from the middle of the schedule on, open and with two users.

    Two of `n` requests are sent into the stall by users who wait, half of them by a schedule: with
    `n` above 8 the 75th percentile from sending does not see it, and that from due does.
    """
    rate, found = STALL_SHARE * capacity, []
    stall_s = STALL_LENGTH * n / rate
    for seed in SEEDS:
        due = at_rate(requests_of(seed, n), rate, seed)
        stall = (due[n // 2 - 1].arrival_s, stall_s)
        few, whole = (load_test(server(model, stall), due, users) for users in (USERS, None))
        ways = {"open": whole, "users": few, "users_from_sent": few.as_if_due_when_sent()}
        found.append({name: digits(run.ttft_s(75)) for name, run in ways.items()})
    lengths = {"rate": digits(rate), "requests": n, "stall_s": digits(stall_s), "users": USERS}
    return {**lengths, "ttft_p75_s": found}


def main() -> None:
    """Writes the record `load_test.<device>`."""
    torch.set_num_threads(1)
    n = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    model = kvlib.load_model(device=kvlib.device())[0]
    load_test(server(model), requests_of(9, 2), users=1)  # warms up
    target = alone(model, n // 4)
    capacity = load_test(server(model), requests_of(0, n), users=LIMITS.max_running).requests_per_s
    rows = requests_of(0, n)
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "trace": f"{TRACE} sample, lengths divided by {SHRINK}",
        "requests": n,
        "seeds": list(SEEDS),
        "mean_prompt": round(sum(r.prompt_tokens for r in rows) / n, 1),
        "mean_output": round(sum(r.output_tokens for r in rows) / n, 1),
        "max_tokens": LIMITS.max_tokens,
        "capacity": digits(capacity),
        "target": {"ttft_s": digits(target.ttft_s), "tpot_s": digits(target.tpot_s)},
        "sweep": sweep(model, n, capacity, target),
        "stall": stalled(model, min(n, STALL_REQUESTS), capacity),
    }
    write("load_test", data, CODE, model.device)


if __name__ == "__main__":
    main()
