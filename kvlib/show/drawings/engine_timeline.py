"""Requests on their way through an engine: who waits, computes, loses memory, and when."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.preemption import SwapSpace
from kvlib.request import Request
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas

BLOCK_SIZE, LAST_STEP = 4, 32
NAMES = "ABCDE"
ARRIVES = (0, 0, 1, 2, 4)
SIZES = ((6, 9), (10, 7), (3, 12), (8, 6), (12, 5))  # prompt and answer
ALIKE = 8  # tokens that B and E begin with
LOSERS = {"recompute": "compute again", "swap": "go to the host"}
_LEFT, _TOP, _ROW, _HIGH, _STRIP = 40, 122, 26, 20, 40
_STATES = {"queued": "waits", "lost": "waits, memory lost", "host": "waits on the host"}
_ROLES = {"queued": "rule", "lost": "paper", "host": "reserved", "again": "wasted"}


class Cell(NamedTuple):
    """One request in one step: its state, tokens computed, and those found in the cache."""

    state: str
    tokens: int = 0
    found: int = 0


class Shot(NamedTuple):
    """One step: a cell for each request, and the blocks that are held."""

    cells: tuple[Cell, ...]
    held: int


def _request(index: int) -> tuple[Request, TokenContent]:
    prompt, answer = SIZES[index]
    alike = ALIKE if NAMES[index] in "BE" else 0
    text = [*range(alike), *range(100 * index + 100, 100 * index + 100 + prompt + answer - alike)]
    return Request(index, None, prompt, answer), TokenContent(text, BLOCK_SIZE)


def _cell(job: ServedRequest, new: int, began: bool) -> Cell:
    if job.finished_s is not None:
        return Cell("done")
    if not job.room:
        return Cell("host" if job.num_swapped else "lost" if job.num_preempted else "queued")
    if not new:
        return Cell("held")
    found = job.num_cached if began and not job.num_preempted else 0
    if job.num_computed < job.num_lost:
        return Cell("again", new, found)
    inside = job.num_computed < job.request.prompt_tokens
    return Cell("prefill" if inside else "decode", new, found)


@cache
def timeline(blocks: int, budget: int, loser: str) -> tuple[Shot, ...]:
    """Returns all steps until every request is done.

    Example:
        >>> [cell.state for cell in timeline(16, 8, "recompute")[0].cells]
        ['prefill', 'prefill', 'away', 'away', 'away']
    """
    memory = KVMemory(blocks, BLOCK_SIZE, HashIndex)
    swap = SwapSpace(1000) if loser == "swap" else None
    scheduler = Scheduler(memory, limits=StepLimits(budget), swap=swap)
    jobs: list[ServedRequest] = []
    shots: list[Shot] = []
    while scheduler.has_work or len(jobs) < len(SIZES):
        while len(jobs) < len(SIZES) and ARRIVES[len(jobs)] <= len(shots):
            request, content = _request(len(jobs))
            jobs.append(scheduler.add(request, content=content))
        before = [job.num_started for job in jobs]
        step = scheduler.schedule()
        new = {job: n for job, n in step.work}
        both = zip(jobs, before, strict=True)
        cells = [_cell(job, new.get(job, 0), job.num_started > times) for job, times in both]
        cells += [Cell("away")] * (len(SIZES) - len(jobs))
        shots.append(Shot(tuple(cells), memory.pool.num_held))
        scheduler.report(step, float(len(shots)))
    return tuple(shots)


def words(name: str, cell: Cell) -> str:
    """Returns what one request does in a step.

    Example:
        >>> words("E", Cell("prefill", 4, 8))
        'E computes 4 of its prompt, 8 found'
    """
    found = f", {cell.found} found" if cell.found else ""
    texts = {
        "prefill": f"{name} computes {cell.tokens} of its prompt{found}",
        "decode": f"{name} answers",
        "again": f"{name} computes {cell.tokens}, some of them again",
        "held": f"{name} stands still",
        "done": f"{name} is done",
        "away": f"{name} is not here yet",
    }
    return texts.get(cell.state) or f"{name} {_STATES[cell.state]}"


def _rows(canvas: Canvas, shots: tuple[Shot, ...], wide: float) -> None:
    for i, name in enumerate(NAMES):
        y = _TOP + i * _ROW
        canvas.text(MARGIN, y + 15, name, bold=True)
        for column, shot in enumerate(shots):
            state = shot.cells[i].state
            if state not in ("done", "away"):
                role = _ROLES.get(state, "paper" if state == "held" else state)
                frame = "wasted" if state == "lost" else "rule"
                canvas.rect(_LEFT + column * wide, y, wide - 1, _HIGH, role, frame)


def _memory(canvas: Canvas, y: float, shots: tuple[Shot, ...], blocks: int, wide: float) -> None:
    canvas.line([(_LEFT, y), (_LEFT + len(shots) * wide, y)], "wasted", 1, "3 3")
    for column, shot in enumerate(shots):
        high = _STRIP * shot.held / blocks
        canvas.rect(_LEFT + column * wide, y + _STRIP - high, wide - 1, high, "used")


@drawing(
    step=Slider(range(1, LAST_STEP + 1), 7, "step"),
    blocks=Slider([6, 7, 8, 10, 16], 8, "blocks of 4 tokens"),
    budget=Slider([4, 8, 32], 8, "tokens in a step"),
    loser=Choice(list(LOSERS), "recompute", "victims", LOSERS),
)
def engine_timeline(step: int, blocks: int, budget: int, loser: str) -> str:
    """Draws five requests through all steps, the memory below them, and one step in words."""
    shots = timeline(blocks, budget, loser)
    step = min(step, len(shots))
    wide = (WIDTH - MARGIN - _LEFT) / LAST_STEP
    shot = shots[step - 1]
    computed = sum(cell.tokens for each in shots for cell in each.cells)
    again = (
        computed
        - sum(p + a - 1 for p, a in SIZES)
        + sum(cell.found for each in shots for cell in each.cells)
    )
    says = "; ".join(words(*each) for each in zip(NAMES, shot.cells, strict=True)) + "."
    sums = f"{len(shots)} steps, {computed} tokens computed, {again} of them again."
    strip = _TOP + len(NAMES) * _ROW + 20
    low = strip + _STRIP + 26
    canvas = Canvas(
        "engine_timeline",
        low + 74,
        "Five requests through an engine",
        f"Step {step} of {len(shots)}: {says} {shot.held} of {blocks} blocks held. {sums}",
        under=f"{blocks} blocks, {budget} tokens a step; victims {LOSERS[loser]}",
    )
    keys = (("prefill", "prompt"), ("decode", "answer"), ("wasted", "computed again"))
    lines = (("rule", "waits"), ("reserved", "on the host"), ("paper", "has lost its memory"))
    for y, row in ((70, keys), (92, lines)):
        for i, (role, text) in enumerate(row):
            canvas.key(MARGIN + 124 * i, y, role, text)
    x = _LEFT + (step - 1) * wide
    canvas.rect(x - 1, _TOP - 10, wide + 1, strip + _STRIP - _TOP + 12, "paper", "ink")
    _rows(canvas, shots, wide)
    canvas.text(MARGIN, strip - 4, "blocks held", size=12, role="faint")
    _memory(canvas, strip, shots, blocks, wide)
    canvas.text(MARGIN, low, f"Step {step}: {shot.held} of {blocks} blocks held", bold=True)
    canvas.paragraph(canvas.paragraph(low + 20, says), sums, bold=True)
    return canvas.svg()
