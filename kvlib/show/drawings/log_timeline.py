"""A log over time: what it says is used, who waits, and what it leaves out."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from kvlib.load_samples import FULL, Sample
from kvlib.log_timeline import Log, read
from kvlib.show.drawings.controls import Choice, Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

LOGS = {
    "quiet": "a chat, vLLM V1",
    "capped": "8 at a time, vLLM V1",
    "full": "long answers, vLLM V0",
    "cautious": "generous clients, SGLang",
}
LINES = 20
ADVICE = {
    "idle": "Nobody is here.",
    "room for more": "Nobody waits, so memory is not what limits it.",
    "memory full": "Requests wait for memory, or lose it.",
    "held back": "Requests wait beside free memory: look at the other limits.",
}
_TOP, _HIGH, _LINE = 96, 120, 54


class Told(NamedTuple):
    """One of the stored logs: read, and the shares that were kept for later, which it leaves out.

    Attributes:
        lines: the load lines as printed.
    """

    log: Log
    kept: tuple[float, ...]
    lines: tuple[str, ...]


@cache
def told(name: str) -> Told:
    """Returns a stored log, read.

    Example:
        >>> told("full").log.preempted, len(told("quiet").kept)
        (101, 20)
    """
    text = (files("kvlib") / "data" / "engine_logs.json").read_text(encoding="utf-8")
    stored: dict[str, Any] = json.loads(text)["logs"][name]
    marks = ("Avg prompt throughput: ", "Decode batch")
    lines = tuple(line for line in stored["lines"] if any(mark in line for mark in marks))
    return Told(read(stored["lines"]), tuple(kept for *_, kept in stored["truth"]), lines)


def _share(canvas: Canvas, x: float, low: float, share: float, role: str, wide: float) -> float:
    high = _HIGH * share
    canvas.rect(x, low - high, wide, high, role)
    return low - high


def _column(canvas: Canvas, x: float, wide: float, sample: Sample, kept: float, most: int) -> None:
    low = _TOP + _HIGH
    top = _share(canvas, x, low, sample.used_share, "used", wide - 3)
    if kept:
        _share(canvas, x, top, kept, "cached", wide - 3)
    if sample.preempted:
        canvas.rect(x, low + 3, wide - 3, 8, "wasted")
    tall = (_LINE - 22) * sample.waiting / most
    canvas.rect(x, low + 16, wide - 3, tall, "reserved")


def _keys(canvas: Canvas, kept: bool) -> None:
    keys = [("used", "used"), ("reserved", "waiting"), ("wasted", "lost memory")]
    keys += [("cached", "kept")] * kept
    for i, (role, name) in enumerate(keys):
        canvas.key(MARGIN + 92 * i + 24 * (i == 3), 76, role, name)


def _summary(log: Log) -> str:
    pool, size = log.pool, log.pool_tokens()
    most = f"{size / pool['max_len']:.1f}"
    ran = max(sample.running for sample in log.samples)
    return (
        f"Pool {size:,} tokens: {most} requests of {pool['max_len']:,}. "
        f"Most at a time here: {ran} running."
    )


@drawing(
    log=Choice(list(LOGS), "quiet", "log", LOGS),
    line=Slider(range(1, LINES + 1), 20, "line of load"),
    kept=Toggle(False, "show what the log leaves out"),
)
def log_timeline(log: str, line: int, kept: bool) -> str:
    """Draws a log's load lines over time, and what one of them says."""
    read_log, shares, _ = told(log)
    samples = read_log.samples
    at = min(line, len(samples)) - 1
    now = samples[at]
    wide, low = ROOM / len(samples), _TOP + _HIGH
    words = f"used {100 * now.used_share:.1f} %"
    if kept:
        words += f", kept for later {100 * shares[at]:.1f} %"
    lost = f", {now.preempted} lost their memory" if now.preempted else ""
    says = f"Line {at + 1}: {now.running} run, {now.waiting} wait{lost}; {words}."
    verdict = f"{now.state.capitalize()}. {ADVICE[now.state]}"
    canvas = Canvas(
        "log_timeline",
        low + _LINE + 122,
        f"What the log of {LOGS[log].rsplit(',', 1)[0]} says",
        f"One column for each line of load, {len(samples)} of them: the share of the pool in use"
        f"{', on it what is kept for later' if kept else ''}, below it who waits. {says} {verdict} "
        f"{_summary(read_log)}",
        under=f"{LOGS[log].rsplit(', ', 1)[1]}'s format; numbers made up by a simulator",
    )
    _keys(canvas, kept)
    canvas.rect(MARGIN, _TOP, ROOM, _HIGH, "paper", "rule")
    most = max(1, *(sample.waiting for sample in samples))
    for i, sample in enumerate(samples):
        held_back = shares[i] if kept else 0.0
        _column(canvas, MARGIN + 1.5 + i * wide, wide, sample, held_back, most)
    full = _TOP + _HIGH * (1 - FULL)
    canvas.line([(MARGIN, full), (WIDTH - MARGIN, full)], "faint", dash="4 3")
    if not kept:
        canvas.text(WIDTH - MARGIN, 76, f"dashed: {100 * FULL:.0f} %", "end", role="faint")
    x = MARGIN + at * wide
    edge = [(x, _TOP - 4), (x + wide, _TOP - 4), (x + wide, low + _LINE - 2), (x, low + _LINE - 2)]
    canvas.line([*edge, edge[0]], "ink", 1.6)
    y = canvas.paragraph(low + _LINE + 18, says, bold=True)
    y = canvas.paragraph(y, verdict)
    canvas.paragraph(y, _summary(read_log), role="faint")
    return canvas.svg()
