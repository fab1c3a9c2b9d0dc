"""Four knobs of an engine on two traces, under two clocks: the record trace_tuning.cpu.

One A10 with Llama-3-8B serves 200 requests a stretch, three stretches of each trace, whose own gaps
are stretched by one factor to a rate that the default setting cannot quite keep up with. Scored is
the share of requests that keep our target. In one clock's steps bytes and arithmetic take turns, in
the other's they overlap perfectly; 5 ms for each step are assumed beside. Nothing is shared between
prompts. The times order settings for these clocks and predict no server.

What the grid's three stretches choose is scored again on stretches that no choice has seen, and at
other rates. A test recomputes one knob at a time on one stretch of each trace; all of it takes four
minutes. What a drawing reads in the reader's browser is left in `kvlib/data/tuning.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from math import fsum
from typing import Any

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.comparison import slots_on
from kvlib.request import Request
from kvlib.serial_clock import SerialClock
from kvlib.serving_run import Target
from kvlib.tuning import Score, Server, Setting, grid, one_at_a_time
from record import ROOT, for_the_book
from whole_traces import load, record_figures

SERVER = Server(gpu("A10"), model("Llama-3-8B"), Target(ttft_s=5.0, tpot_s=0.1), overhead_s=0.005)
CLOCKS = {"take turns": SerialClock, "overlap": RooflineClock}
DEFAULT = Setting()
GRID: dict[str, tuple[Any, ...]] = {
    "block_size": (16, 256),
    "max_tokens": (128, 256, 512, 1024, 2048, 8192),
    "max_running": (16, 32, 256),
    "watermark": (0.0, 0.05, 0.2),
}
ONE_AT_A_TIME = GRID | {
    "block_size": (1, 8, 16, 32, 64, 128, 256),
    "max_running": (16, 24, 32, 64, 256),
    "watermark": (0.0, 0.01, 0.02, 0.05, 0.1, 0.2),
}
STARTS = {"azure-conv": (1000, 8000, 15000), "azure-code": (1000, 4000, 7000)}
RATES = {
    ("take turns", "azure-conv"): 2.2,
    ("take turns", "azure-code"): 0.7,
    ("overlap", "azure-conv"): 2.8,
    ("overlap", "azure-code"): 1.0,
}
# What is confirmed on them: what the grid's three stretches choose, and the watermark that was
# vLLM V0's default.
TO_CONFIRM = (
    DEFAULT,
    Setting(max_tokens=256),
    Setting(max_tokens=256, max_running=16),
    Setting(watermark=0.05),
    Setting(watermark=0.01),
)
# Requests a second at which two settings are compared once more, down to a light load.
LOADS = {"azure-conv": (1.4, 1.8, 2.2), "azure-code": (0.1, 0.2, 0.3, 0.5, 0.7)}
AT_RATES = (DEFAULT, Setting(max_tokens=256))
REQUESTS = 200
# Stretches that no choice has seen. The trace of code has a rhythm: stretches that begin at 100,
# 600, 1100 … and at 300, 800, 1300 … differ by 25 points at the default. So these begin every 250.
HELD_OUT = {
    name: [s for s in every if all(abs(s - start) >= REQUESTS for start in STARTS[name])]
    for name, every in {
        "azure-conv": range(300, 19_000, 1000),
        "azure-code": range(300, 8_600, 250),
    }.items()
}
CODE = (
    "kvlib/tuning.py",
    "kvlib/admission.py",
    "kvlib/clock.py",
    "kvlib/serial_clock.py",
    "kvlib/serving.py",
    "kvlib/scheduler.py",
    "kvlib/running_batch.py",
    "kvlib/scheduled_step.py",
    "kvlib/kv_memory.py",
    "measure/trace_tuning.py",
)


def key(setting: Setting) -> str:
    """The setting as the record names it: block size, chunk, at once, watermark."""
    return " ".join(f"{value:g}" for value in astuple(setting))


def stretch(name: str, start: int, rate: float) -> list[Request]:
    """Requests of a trace from one on, their gaps stretched to a rate."""
    requests = load(name).requests[start : start + REQUESTS]
    first, last = requests[0].arrival_s, requests[-1].arrival_s
    factor = (len(requests) - 1) / (last - first) / rate
    return [replace(r, arrival_s=(r.arrival_s - first) * factor) for r in requests]


def swept(
    clock: str,
    name: str,
    settings: Iterable[Setting],
    starts: Sequence[int],
    rate: float | None = None,
) -> dict[Setting, list[Score]]:
    """Scores of settings on stretches of one trace."""
    rate = rate or RATES[clock, name]
    workloads = [stretch(name, start, rate) for start in starts]
    server = replace(SERVER, clock=CLOCKS[clock])
    return {s: [server.score(s, each) for each in workloads] for s in settings}


def good_percent(scores: Iterable[Score]) -> list[float]:
    """Percent of requests that kept the target, one figure for each score."""
    return [round(100 * score.good_share, 1) for score in scores]


def in_grid_order(scores: dict[Setting, list[Score]]) -> dict[str, list[list[float]]]:
    """A list for each stretch, setting after setting in the grid's order."""
    stretches = list(zip(*scores.values(), strict=True))
    return {
        "good_percent": [good_percent(each) for each in stretches],
        "tpot_p99_ms": [[round(1000 * s.tpot_p99_s, 1) for s in each] for each in stretches],
    }


def by_setting(scores: dict[Setting, list[Score]]) -> dict[str, dict[str, list[float]]]:
    """Setting to its figures, one for each stretch."""
    return {
        "good_percent": {key(s): good_percent(each) for s, each in scores.items()},
        "preempted": {key(s): [score.preempted for score in each] for s, each in scores.items()},
    }


def by_rate(name: str) -> dict[str, Any]:
    """Means of some settings over some of the stretches held out, at one rate after another."""
    starts, rates = HELD_OUT[name][::3], LOADS[name]
    found = {key(s): [] for s in AT_RATES}
    for rate in rates:
        for s, scores in swept("take turns", name, AT_RATES, starts, rate).items():
            found[key(s)].append(round(fsum(good_percent(scores)) / len(starts), 1))
    return {"starts": list(starts), "per_s": list(rates), "good_percent": found}


def figures() -> dict[str, Any]:
    """What a test recomputes: what was served on what, and one knob at a time."""
    found: dict[str, Any] = {
        "sources": {name: load(name).source for name in STARTS},
        "card": SERVER.gpu.name,
        "model": SERVER.model.name,
        "slots": slots_on(SERVER.gpu, SERVER.model),
        "overhead_s": SERVER.overhead_s,
        "target": {"ttft_s": SERVER.target.ttft_s, "tpot_s": SERVER.target.tpot_s},
        "requests": REQUESTS,
        "values": {knob: list(values) for knob, values in GRID.items()},
        "starts": {name: list(starts) for name, starts in STARTS.items()},
        "per_s": {clock: {name: RATES[clock, name] for name in STARTS} for clock in CLOCKS},
    }
    for name, starts in STARTS.items():
        some = one_at_a_time(DEFAULT, **ONE_AT_A_TIME)
        found[f"one at a time, {name}"] = by_setting(swept("take turns", name, some, starts[:1]))
    return found


def all_figures() -> dict[str, Any]:
    """Everything the record holds."""
    found = figures()
    for clock in CLOCKS:
        for name, starts in STARTS.items():
            scores = swept(clock, name, grid(DEFAULT, **GRID), starts)
            found[f"{clock}, {name}"] = in_grid_order(scores)
    for name, starts in HELD_OUT.items():
        scores = swept("take turns", name, TO_CONFIRM, starts)
        found[f"held out, {name}"] = {"starts": list(starts)} | by_setting(scores)
        found[f"by rate, {name}"] = by_rate(name)
    if for_the_book():
        keep_for_the_drawing(found)
    return found


def kept(found: dict[str, Any]) -> dict[str, Any]:
    """Means over the stretches, setting after setting in the grid's order."""
    few: dict[str, Any] = {"record": "trace_tuning.cpu", "values": found["values"]}
    for where in (f"{clock}, {name}" for clock in CLOCKS for name in STARTS):
        few[where] = {
            column: [round(fsum(each) / len(each), 1) for each in zip(*stretches, strict=True)]
            for column, stretches in found[where].items()
        }
    return few


def keep_for_the_drawing(found: dict[str, Any]) -> None:
    """Leaves what the drawing needs where it finds it in a reader's browser."""
    target = ROOT / "kvlib" / "data" / "tuning.json"
    target.write_text(json.dumps(kept(found)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record_figures("trace_tuning", all_figures, tuple(STARTS), CODE)
