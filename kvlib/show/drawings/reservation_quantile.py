"""A quantile learned from past requests, tried on later ones under a light or a heavy load."""

from __future__ import annotations

from functools import cache

from kvlib.arena import Arena
from kvlib.request import Request
from kvlib.reservation import Reservation, ReserveMaximum, ReserveOracle, ReservePercentile
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.reservation import BUDGET_TOKENS
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.simulate import Simulation, simulate
from kvlib.workloads import sample

# Llama-2-13B: a token takes as many bytes as in OPT-13B, and the context is twice as long.
MAX_SEQ_LEN = 4096
STEP_S = 0.03
_LEARNED, _TRIED = 200, 100
_TOP, _HIGH = 60, 40
_COLUMNS = (WIDTH - 196, WIDTH - 112, WIDTH - MARGIN)


@cache
def chats(rate: float) -> tuple[Request, ...]:
    """Returns sampled chat requests, cut to 4,096 tokens; the first 200 are the history.

    >>> len(chats(1)), max(r.prompt_tokens + r.output_tokens for r in chats(1))
    (300, 4096)
    """
    drawn = sample("azure-conv", _LEARNED + _TRIED, seed=0, rate=rate)
    prompts = [min(r.prompt_tokens, MAX_SEQ_LEN - 48) for r in drawn]
    return tuple(
        Request(r.request_id, r.arrival_s, p, min(r.output_tokens, MAX_SEQ_LEN - p))
        for r, p in zip(drawn, prompts, strict=True)
    )


@cache
def tried(rate: float, quantile: float | str) -> Simulation:
    """Runs the last hundred; who finds no room is turned away. `maximum` and `oracle` bound it."""
    requests = chats(rate)
    policy: Reservation
    if quantile == "maximum":
        policy = ReserveMaximum(MAX_SEQ_LEN)
    elif quantile == "oracle":
        policy = ReserveOracle(MAX_SEQ_LEN)
    else:
        history = [r.output_tokens for r in requests[:_LEARNED]]
        policy = ReservePercentile(history, quantile, MAX_SEQ_LEN)
    later = requests[_LEARNED:]
    return simulate(later, Arena(BUDGET_TOKENS), policy, step_s=STEP_S, patience_steps=0)


def _strip(canvas: Canvas, run: Simulation) -> None:
    at = float(MARGIN)
    for part, role in (
        ("used", "used"),
        ("reservation", "reserved"),
        ("internal_fragmentation", "wasted"),
    ):
        width = ROOM * run.share(part)
        canvas.rect(at, _TOP, width, _HIGH, role)
        at += width
    canvas.rect(at, _TOP, MARGIN + ROOM - at, _HIGH, "paper", "faint")
    for x, role, words in ((0, "used", "used"), (90, "reserved", "reservation")):
        canvas.key(MARGIN + x, _TOP + _HIGH + 22, role, words)
    canvas.key(MARGIN + 220, _TOP + _HIGH + 22, "wasted", "never filled")
    canvas.key(MARGIN + 340, _TOP + _HIGH + 22, "paper", "free")


def _table(canvas: Canvas, rows: dict[str, Simulation]) -> None:
    for x, words in zip(_COLUMNS, ("turned away", "outgrew", "done twice"), strict=True):
        canvas.text(x, 156, words, "end", role="faint")
    for row, (name, run) in enumerate(rows.items()):
        y = 180 + 22 * row
        canvas.text(MARGIN, y, name, bold=row == 1)
        twice = run.copied_tokens + run.recomputed_tokens
        for x, figure in zip(_COLUMNS, (run.turned_away, run.overflowed, twice), strict=True):
            canvas.text(x, y, f"{figure:,}", "end", bold=row == 1)


@drawing(
    quantile=Slider([0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1], 0.95, "quantile of past outputs"),
    rate=Slider([0.1, 0.25, 0.5, 1, 2, 4], 1, "requests a second"),
)
def reservation_quantile(quantile: float, rate: float) -> str:
    """Draws what a quantile makes of the memory, who is turned away and who outgrows it."""
    run = tried(rate, quantile)
    rows = {
        "maximum": tried(rate, "maximum"),
        f"quantile {quantile}": run,
        "oracle": tried(rate, "oracle"),
    }
    verdict = (
        f"{run.turned_away} of {_TRIED} are turned away, {run.overflowed} outgrow their piece. "
        f"The maximum turns {rows['maximum'].turned_away} away."
    )
    canvas = Canvas(
        "reservation_quantile",
        284,
        f"{BUDGET_TOKENS:,} slots, requests a second: {rate}",
        f"A strip of {BUDGET_TOKENS:,} slots on average over the run: "
        f"{100 * run.share('used'):.1f} % used. {verdict}",
        under=f"Reserved: prompt + quantile {quantile} of {_LEARNED} past outputs",
    )
    _strip(canvas, run)
    _table(canvas, rows)
    canvas.paragraph(252, verdict, bold=True)
    return canvas.svg()
