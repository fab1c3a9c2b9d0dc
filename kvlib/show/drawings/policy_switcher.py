"""One memory under one engine's policies, step by step: who holds what, and what it comes to."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from kvlib import atlas
from kvlib.comparison import content_for
from kvlib.request import Request
from kvlib.scheduled_step import StepLimits
from kvlib.serving_run import ServingRun
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.waste import PARTS
from kvlib.workloads import Spread, conversations, lognormal

LONGEST, MOST_OUTPUTS = 1024, 400
LIMITS = StepLimits(max_tokens=512, max_running=64)
LINE, SPREAD, LONG, TALK = "chats in a line", "chats now and then", "long prompts", "conversations"
_ROLES = ("used", "reserved", "wasted", "weights", "paper")
_WORDS = ("used", "to come", "never filled", "holes", "free")
_COLUMNS, _HEIGHT = 68, 132


class Served(NamedTuple):
    """A run, and for each of its steps the tokens of each part of the memory."""

    run: ServingRun
    parts: tuple[tuple[float, ...], ...]


@cache
def requests_of(load: str) -> tuple[tuple[int, Request], ...]:
    """Returns made-up requests, each with the step before which it comes."""
    if load == TALK:
        talk = conversations(0, 12, system_tokens=150, user_tokens=20, output_tokens=60)
        requests, every = talk.requests, 10
    elif load == LONG:
        requests, every = lognormal(80, 0, Spread(500, 0.4), Spread(30, 0.6), 900).requests, 0
    else:
        requests = lognormal(120, 0, Spread(100, 0.8), Spread(110, 0.8), 900).requests
        every = 7 if load == SPREAD else 0
    return tuple(
        (i * every, replace(r, max_new_tokens=max(MOST_OUTPUTS, r.output_tokens)))
        for i, r in enumerate(requests)
    )


@cache
def served(engine: str, load: str, slots: int) -> Served:
    """Serves a load with an engine's policies; a step takes one unit of time, whatever it does."""
    scheduler = atlas.engine(engine).build(slots, LONGEST, limits=LIMITS)
    content, run, parts = content_for(scheduler, own=True), ServingRun(None, timed=False), []
    upcoming, before = list(reversed(requests_of(load))), [0.0] * len(PARTS)
    while upcoming or scheduler.has_work:
        while upcoming and upcoming[-1][0] <= run.steps:
            _, request = upcoming.pop()
            scheduler.add(request, content=content(request))
        step = scheduler.schedule()
        run.began(scheduler, step, 1.0)
        for job in scheduler.report(step):
            run.ended(job)
        now = list(run.part_s.values())
        parts.append(tuple(b - a for a, b in zip(before, now, strict=True)))
        before = now
    run.recomputed_tokens = scheduler.recomputed_tokens
    return Served(run, tuple(parts))


def _columns(parts: tuple[tuple[float, ...], ...]) -> list[list[float]]:
    """Returns the mean share of each part in equal stretches of the run."""
    found, size = [], sum(parts[0])
    for i in range(_COLUMNS):
        first = i * len(parts) // _COLUMNS
        some = parts[first : max(first + 1, (i + 1) * len(parts) // _COLUMNS)]
        found.append([sum(each) / (len(some) * size) for each in zip(*some, strict=True)])
    return found


def _pool(canvas: Canvas, y: float, parts: tuple[tuple[float, ...], ...]) -> None:
    width = ROOM / _COLUMNS
    for i, shares in enumerate(_columns(parts)):
        bottom = y + _HEIGHT
        for role, share in zip(_ROLES, shares, strict=True):
            if role != "paper" and share > 0.002:
                bottom -= share * _HEIGHT
                canvas.rect(MARGIN + i * width, bottom, width + 0.3, share * _HEIGHT, role)
    frame = (MARGIN, y), (WIDTH - MARGIN, y), (WIDTH - MARGIN, y + _HEIGHT), (MARGIN, y + _HEIGHT)
    canvas.line((*frame, frame[0]), "faint")


def _verdict(engine: str, run: ServingRun, other: ServingRun) -> str:
    if engine == "vLLM V1":
        return f"{run.steps:,} steps. Choose another engine to compare."
    return f"{run.steps:,} steps; vLLM V1 takes {other.steps:,} in the same memory."


@drawing(
    engine=Choice(atlas.engines(), "vLLM V1", "engine"),
    load=Choice([LINE, SPREAD, LONG, TALK], LINE, "load"),
    slots=Slider([2048, 4096, 8192, 16_384], 4096, "memory (tokens)", "{:,}"),
)
def policy_switcher(engine: str, load: str, slots: int) -> str:
    """Draws who holds the memory from the first step to the last, and the counts of the run."""
    run, parts = served(engine, load, slots)
    verdict = _verdict(engine, run, served("vLLM V1", load, slots).run)
    rows = (
        ("tokens in use", f"{100 * run.share('used'):.0f} %"),
        ("requests at once, mean and most", f"{run.mean_running:.1f} and {run.peak_running}"),
        ("prompt tokens found in memory", f"{100 * run.prefix_hit_rate:.0f} %"),
        ("times a request lost its memory", f"{run.preempted:,}"),
        ("tokens computed twice", f"{100 * run.recomputed_share:.1f} %"),
    )
    facts = "; ".join(f"{words} {figure}" for words, figure in rows)
    canvas = Canvas(
        "policy_switcher",
        372,
        f"{engine}, {load}",
        f"The memory of {slots:,} tokens over {run.steps:,} steps. {facts}. {verdict}",
        under=f"{len(requests_of(load))} requests, {slots:,} tokens of memory, from left to right",
    )
    for at, role, words in zip((0, 62, 146, 256, 330), _ROLES, _WORDS, strict=True):
        canvas.key(MARGIN + at, 74, role, words)
    _pool(canvas, 88, parts)
    for i, (words, figure) in enumerate(rows):
        canvas.text(MARGIN, 246 + 22 * i, words)
        canvas.text(WIDTH - MARGIN, 246 + 22 * i, figure, "end", bold=True)
    canvas.paragraph(360, verdict, bold=True)
    return canvas.svg()
