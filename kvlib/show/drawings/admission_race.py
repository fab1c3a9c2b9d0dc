"""Five rules for who may begin, on the same requests: memory in use and work done twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from kvlib.admission import (
    Admission,
    AdmitDiscounted,
    AdmitPredictedPeak,
    AdmitPrompt,
    AdmitReserved,
)
from kvlib.kv_memory import KVMemory
from kvlib.preemption import Victim, fewest_outputs, newest
from kvlib.request import Request
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.serving_run import ServingRun
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.workloads import Spread, lognormal

REQUESTS, MOST = 80, 1024
PROMPT, OUTPUT = Spread(80, 1.0), Spread(120, 0.8)
ANYTHING = "anything"
# For each rule: how it is made from a watermark, its unit in tokens, and whom it takes memory from.
RULES: dict[str, tuple[Callable[[float], Admission], int, Victim]] = {
    "prompt + max_new": (lambda mark: AdmitReserved(), 16, newest),
    "predicted peak": (lambda mark: AdmitPredictedPeak(least_outputs=256), 1, newest),
    "discounted": (lambda mark: AdmitDiscounted(), 1, fewest_outputs),
    "prompt, watermark": (AdmitPrompt, 16, newest),
    "prompt only": (lambda mark: AdmitPrompt(), 16, newest),
}
MARKED = "prompt, watermark"
_ROW = 54


@cache
def _lengths() -> tuple[Request, ...]:
    return lognormal(REQUESTS, 0, PROMPT, OUTPUT, MOST).requests


@cache
def raced(rule: str, memory: int, allowed: int | str, watermark: float) -> ServingRun:
    """Serves 80 requests, all in line from the start, under one rule."""
    make, unit, victim = RULES[rule]
    limit = None if allowed == ANYTHING else int(allowed)
    requests = (
        replace(r, max_new_tokens=limit, output_tokens=min(r.output_tokens, limit or MOST))
        for r in _lengths()
    )
    scheduler = Scheduler(
        KVMemory(memory // unit, unit), admission=make(watermark), victim=victim, max_seq_len=MOST
    )
    return serve(requests, scheduler, drain=False)


def _row(canvas: Canvas, y: float, rule: str, run: ServingRun) -> None:
    used, twice = run.share("used"), run.recomputed_share
    canvas.text(MARGIN, y, rule)
    figures = f"{run.mean_running:.1f} run, {100 * twice:.0f} % twice"
    canvas.text(WIDTH - MARGIN, y, figures, "end", bold=True)
    canvas.rect(MARGIN, y + 8, ROOM, 16, "paper", "faint")
    canvas.rect(MARGIN, y + 8, ROOM * used, 16, "used", "faint")
    canvas.rect(MARGIN, y + 27, ROOM * twice, 7, "wasted", "faint")
    held = run.share("reservation") + run.share("internal_fragmentation")
    canvas.rect(MARGIN + ROOM * used, y + 8, ROOM * held, 16, "reserved", "faint")


@drawing(
    allowed=Choice([128, 256, 512, ANYTHING], 512, "tokens a client allows"),
    watermark=Slider([0.0, 0.01, 0.02, 0.05, 0.1, 0.2], 0.01, "watermark (share of memory)"),
    memory=Slider([1024, 2048, 4096], 2048, "memory (slots)"),
)
def admission_race(allowed: int | str, watermark: float, memory: int) -> str:
    """Draws for each rule the memory in use, what is held beside it, and the work done twice."""
    runs = {
        rule: raced(rule, memory, allowed, watermark if rule == MARKED else 0.0) for rule in RULES
    }
    marked, plain = runs[MARKED], runs["prompt only"]
    verdict = (
        f"With the watermark somebody loses memory {marked.preempted} times, without it "
        f"{plain.preempted}; {marked.mean_running:.1f} and {plain.mean_running:.1f} run at a time."
    )
    words = "; ".join(
        f"{rule}: {100 * run.share('used'):.0f} % used, {run.mean_running:.1f} at a time, "
        f"{100 * run.recomputed_share:.0f} % computed twice"
        for rule, run in runs.items()
    )
    canvas = Canvas(
        "admission_race",
        140 + _ROW * len(runs),
        f"{memory:,} slots, {REQUESTS} requests in line",
        "For each rule a strip of the memory, under it the share of work done twice. "
        f"{words}. {verdict}",
        under=f"clients allow {allowed}; watermark {100 * watermark:g} %",
    )
    keys = (("used", "in use"), ("reserved", "held, empty"), ("paper", "free"))
    for i, (role, label) in enumerate((*keys, ("wasted", "of the work: twice"))):
        canvas.key(MARGIN + (0, 76, 182, 240)[i], 74, role, label)
    for i, (rule, run) in enumerate(runs.items()):
        _row(canvas, 106 + _ROW * i, rule, run)
    canvas.paragraph(112 + _ROW * len(runs), verdict, bold=True)
    return canvas.svg()
