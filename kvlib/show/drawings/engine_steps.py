"""A scheduler at work, step by step: who waits, who computes what, who holds which block."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kvlib.kv_memory import KVMemory
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.workloads import Spread, lognormal

BLOCK_SIZE, CHUNK, WHOLE, LAST_STEP = 4, 8, 32, 46
ARRIVES = (0, 0, 1, 3, 6, 8)
REQUESTS = lognormal(6, 11, Spread(9, 0.7), Spread(9, 0.5), 30).requests
PROMPTS = {"chunks": f"in chunks, {CHUNK} tokens a step", "whole": "each in one step"}
ORDERS = {"decode": "running ones first", "prefill": "a new prompt alone, first"}
_LEFT, _TOP, _ROW, _CELL = 44, 96, 24, 7


class Row(NamedTuple):
    """One request in one step: tokens computed before it, in it, and of those again.

    What is new in it has a role: `prefill` or `decode`.
    """

    state: str
    before: int
    new: int
    again: int
    known: int
    total: int
    role: str = "prefill"


class Shot(NamedTuple):
    """One step as it is computed; `owners` has one request, or None, for each block."""

    rows: tuple[Row, ...]
    owners: tuple[int | None, ...]
    waiting: tuple[int, ...]
    preempted: tuple[int, ...]


def _row(job: ServedRequest | None, order: int, new: int, waits: bool, lost: bool) -> Row:
    total = REQUESTS[order].prompt_tokens + REQUESTS[order].output_tokens
    if job is None:
        return Row("not here yet", 0, 0, 0, 0, total)
    if lost or waits:
        return Row("loses its memory" if lost else "waits", 0, 0, 0, job.num_tokens, total)
    if not job.room:
        return Row("done", 0, 0, 0, 0, total)
    before, prompt = job.num_computed, job.request.prompt_tokens
    again = min(new, max(0, job.num_lost - before))
    role = "prefill" if before + again < prompt else "decode"
    parts = [f"again {again}"] * bool(again) + [f"{role} {new - again}"] * (new > again)
    state = ", ".join(parts) or "stands still"
    return Row(state, before, new, again, job.num_tokens, total, role)


@cache
def shots(prompts: str, order: str, num_blocks: int) -> tuple[Shot, ...]:
    """Returns every step of a run, until all requests are done.

    Example:
        >>> [row.state for row in shots("chunks", "decode", 24)[0].rows[:3]]
        ['prefill 8', 'waits', 'not here yet']
    """
    chunked = prompts == "chunks"
    limits = StepLimits(CHUNK if chunked else WHOLE, 8, chunked, order == "prefill")
    scheduler = Scheduler(KVMemory(num_blocks, BLOCK_SIZE), limits=limits)
    jobs: list[ServedRequest] = []
    found: list[Shot] = []
    while scheduler.has_work or len(jobs) < len(REQUESTS):
        while len(jobs) < len(REQUESTS) and ARRIVES[len(jobs)] <= len(found):
            jobs.append(scheduler.add(REQUESTS[len(jobs)]))
        before = [job.num_preempted for job in jobs]
        step = scheduler.schedule()
        new = {job.order: n for job, n in step.work}
        waiting = tuple(job.order for job in scheduler.waiting)
        both = zip(jobs, before, strict=True)
        lost = tuple(job.order for job, times in both if job.num_preempted > times)
        here = [*jobs, *[None] * (len(REQUESTS) - len(jobs))]
        rows = tuple(
            _row(job, i, new.get(i, 0), i in waiting, i in lost) for i, job in enumerate(here)
        )
        held = {block: job.order for job in jobs for block in job.block_ids}
        found.append(Shot(rows, tuple(map(held.get, range(num_blocks))), waiting, lost))
        scheduler.report(step)
    return tuple(found)


def _request(canvas: Canvas, index: int, row: Row) -> None:
    y, x = _TOP + index * _ROW, _LEFT
    canvas.text(MARGIN, y + 13, str(index), bold=True)
    parts = [(row.before, "used"), (row.again, "wasted"), (row.new - row.again, row.role)]
    parts.append((row.known - row.before - row.new, "reserved"))
    for tokens, role in parts:
        if tokens > 0:
            canvas.rect(x, y, tokens * _CELL, 16, role)
            x += tokens * _CELL
    if row.state == "done":
        canvas.rect(x, y, row.total * _CELL, 16, "rule")
    elif row.state != "not here yet":
        canvas.rect(x, y, (_LEFT - x) + row.total * _CELL, 16, "paper", "rule")
    lost = row.state == "loses its memory"
    role = "faint" if row.state in ("done", "not here yet", "waits") else "ink"
    canvas.text(WIDTH - MARGIN, y + 13, row.state, "end", bold=lost, role=role)


def _blocks(canvas: Canvas, y: float, owners: tuple[int | None, ...]) -> None:
    box = ROOM / 12
    for block, owner in enumerate(owners):
        x, top = MARGIN + block % 12 * box, y + block // 12 * 28
        canvas.rect(x, top, box - 4, 22, "paper", "used" if owner is not None else "rule")
        if owner is not None:
            canvas.rect(x, top, 8, 22, "used")
            canvas.text(x + 19, top + 16, str(owner), "middle", bold=True)


@drawing(
    step=Slider(range(1, LAST_STEP + 1), 6, "step"),
    prompts=Choice(list(PROMPTS), "chunks", "prompts", PROMPTS),
    order=Choice(list(ORDERS), "decode", "order", ORDERS),
    blocks=Slider([8, 10, 12, 16, 24], 10, "blocks of 4 tokens"),
)
def engine_steps(step: int, prompts: str, order: str, blocks: int) -> str:
    """Draws one step of a scheduler: the requests, the tokens computed, and the memory."""
    run = shots(prompts, order, blocks)
    over, shot = step > len(run), run[min(step, len(run)) - 1]
    past = run[: min(step, len(run))]
    tokens = [sum(row.new for row in each.rows) for each in past]
    again = sum(row.again for each in past for row in each.rows)
    lost = sum(len(each.preempted) for each in past)
    heading = f"All done after {len(run)} steps" if over else f"Step {step}: {tokens[-1]} tokens"
    line = " ".join(map(str, shot.waiting)) or "nobody"
    sums = f"So far {sum(tokens)} tokens computed, {again} of them again."
    worst = f"Memory lost: {lost} x. Largest step: {max(tokens)} tokens."
    states = ". ".join(f"Request {i}: {row.state}" for i, row in enumerate(shot.rows))
    top = _TOP + len(REQUESTS) * _ROW + 22
    low = top + 24 + 28 * -(-blocks // 12)
    canvas = Canvas(
        "engine_steps",
        low + 40,
        heading,
        f"{heading}. {states}. In line: {line}. {sums} {worst}",
        under=f"Prompts {PROMPTS[prompts]}; {ORDERS[order]}",
    )
    keys = (("used", "stored"), ("prefill", "prompt"), ("decode", "answer"), ("wasted", "again"))
    for i, (role, words) in enumerate((*keys, ("reserved", "to compute"))):
        canvas.key(MARGIN + 76 * i, 78, role, words)
    for i, row in enumerate(shot.rows):
        done = Row("done", 0, 0, 0, 0, row.total)
        _request(canvas, i, done if over else row)
    owners = (None,) * blocks if over else shot.owners
    free = owners.count(None)
    canvas.text(MARGIN, top, f"Memory: {free} of {blocks} blocks free", bold=True)
    canvas.text(WIDTH - MARGIN, top, f"in line: {'nobody' if over else line}", "end")
    _blocks(canvas, top + 12, owners)
    canvas.paragraph(canvas.paragraph(low + 8, sums), worst)
    return canvas.svg()
