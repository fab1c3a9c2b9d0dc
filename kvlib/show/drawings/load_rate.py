"""One card under load: each request by when it was due and how long its first token took."""

from __future__ import annotations

from functools import cache
from math import log10

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.kv_memory import KVMemory
from kvlib.load_run import LoadRun
from kvlib.load_test import load_test
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving_run import Target
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas
from kvlib.simulated_server import SimulatedServer
from kvlib.workloads import sample

CARD, SHAPE, TRACE = gpu("A10"), model("Llama-3-8B"), "azure-conv"
BLOCK_SIZE, CHUNK, REQUESTS, USERS = 16, 512, 150, 16
# What nine tenths of the card leave beside the weights.
NUM_BLOCKS = (int(0.9 * CARD.memory_bytes) - SHAPE.weight_bytes("bfloat16")) // (
    BLOCK_SIZE * SHAPE.kv.bytes_per_token("bfloat16")
)
TARGET = Target(ttft_s=2.0, tpot_s=0.06)
OPEN, CLOSED = "when it is due", f"when one of {USERS} users is free"
DUE, SENT = "when it is due", "when it is sent"
_TOP, _BOTTOM, _LEFT, _RIGHT = 96, 236, 56, WIDTH - MARGIN
_LEAST, _MOST = 0.05, 100.0


def server(stalls: tuple[tuple[float, float], ...] = ()) -> SimulatedServer:
    """Returns the card as an idle server, prompts in chunks."""
    limits = StepLimits(max_tokens=CHUNK)
    scheduler = Scheduler(KVMemory(NUM_BLOCKS, BLOCK_SIZE), limits=limits)
    return SimulatedServer(scheduler, RooflineClock(CARD, SHAPE), stalls=stalls)


@cache
def under_load(
    rate: float, send: str = OPEN, stall_s: float = 0, n: int = REQUESTS, seed: int = 0
) -> LoadRun:
    """Tests the card at a rate; a stall falls into the middle of the schedule."""
    rows = sample(TRACE, n, seed, rate=rate).requests
    stalls = ((rows[n // 2].arrival_s, stall_s),) if stall_s else ()
    return load_test(server(stalls), rows, USERS if send == CLOSED else None)


def _y(seconds: float) -> float:
    inside = min(max(seconds, _LEAST), _MOST)
    return _BOTTOM - (_BOTTOM - _TOP) * log10(inside / _LEAST) / log10(_MOST / _LEAST)


def _axes(canvas: Canvas, last_s: float) -> None:
    for seconds in (0.1, 1, 10, 100):
        canvas.line([(_LEFT, _y(seconds)), (_RIGHT, _y(seconds))], "rule")
        canvas.text(_LEFT - 6, _y(seconds) + 4, f"{seconds:g} s", "end", size=12, role="faint")
    ends = [(_LEFT, _y(TARGET.ttft_s)), (_RIGHT, _y(TARGET.ttft_s))]
    canvas.line(ends, "ink", 1.2, "5 4")
    canvas.text(_LEFT, _BOTTOM + 18, "due at 0 s", size=12, role="faint")
    canvas.text(_RIGHT, _BOTTOM + 18, f"{last_s:.0f} s", "end", size=12, role="faint")


def _dots(canvas: Canvas, run: LoadRun, due_s: list[float]) -> None:
    """A request that kept the target is a square, one that missed it an upright bar."""
    width = _RIGHT - _LEFT - 5
    for timing, due in zip(run.timings, due_s, strict=True):
        good = timing.keeps(TARGET)
        x, y = _LEFT + width * due / max(due_s[-1], 1e-9), _y(timing.ttft_s)
        tall = 4 if good else 11
        canvas.rect(x, y - tall / 2, 4 if good else 3, tall, "used" if good else "wasted")


def _told(run: LoadRun) -> list[tuple[str, str, str]]:
    """Returns the figures of the picture: what, median, 99th percentile."""
    ttft, tpot = (run.ttft_s(50), run.ttft_s(99)), (run.tpot_s(50), run.tpot_s(99))
    return [
        ("first token", *(f"{seconds:.2f} s" for seconds in ttft)),
        ("each later token", *(f"{1000 * seconds:.0f} ms" for seconds in tpot)),
    ]


@drawing(
    rate=Slider([0.5, 1, 1.5, 2, 2.25, 2.5, 2.75, 3, 4], 2, "rate (requests a second)"),
    stall_s=Slider([0, 5, 15], 0, "the server stops once for (s)"),
    send=Choice([OPEN, CLOSED], OPEN, "a request is sent"),
    watch=Choice([DUE, SENT], DUE, "the watch starts"),
)
def load_rate(rate: float, stall_s: float, send: str, watch: str) -> str:
    """Draws a load test: a mark for each request, percentiles, and how many kept the target."""
    whole = under_load(rate, send, stall_s)
    run = whole.as_if_due_when_sent() if watch == SENT else whole
    due_s = [timing.due_s for timing in whole.timings]
    good, rows = round(100 * run.good_share(TARGET)), _told(run)
    verdict = f"{good} % keep the target: goodput {run.goodput(TARGET):.2f} requests a second."
    told = "; ".join(f"{what}: median {half}, p99 {tail}" for what, half, tail in rows)
    canvas = Canvas(
        "load_rate",
        370,
        f"{REQUESTS} requests at {rate:g} a second",
        f"A mark for each request: when it was due, and how long its first token took. {told}."
        f" {verdict}",
        under=f"target: first token in {TARGET.ttft_s:g} s (dashed), then"
        f" {1000 * TARGET.tpot_s:g} ms a token",
    )
    canvas.key(MARGIN, 74, "used", "kept the target")
    canvas.key(MARGIN + 140, 74, "wasted", "missed a part of it (tall)")
    _axes(canvas, due_s[-1])
    _dots(canvas, run, due_s)
    for x, words in ((250, "median"), (_RIGHT, "p99")):
        canvas.text(x, 280, words, "end", role="faint")
    for i, (what, half, tail) in enumerate(rows):
        canvas.text(MARGIN, 300 + 20 * i, what)
        canvas.text(250, 300 + 20 * i, half, "end")
        canvas.text(_RIGHT, 300 + 20 * i, tail, "end", bold=True)
    canvas.text(MARGIN, 342, verdict, bold=True)
    clock = f"Roofline clock, {SHAPE.name} on one {CARD.name}, {TRACE} sample."
    canvas.text(MARGIN, 360, clock, role="faint", size=12)
    return canvas.svg()
