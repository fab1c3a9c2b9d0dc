"""One memory, four ways of giving it to requests: how many run at once, and where the rest goes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from kvlib.allocator import Allocator
from kvlib.arena import Arena
from kvlib.buddy import BuddyArena
from kvlib.judgement import Reservation
from kvlib.paged_memory import PagedMemory
from kvlib.request import Request
from kvlib.reservation import ReserveMaximum, ReserveOracle, ReservePowerOfTwo, ReservePrompt
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.simulate import Simulation, simulate
from kvlib.workloads import Spread, lognormal, sample

BLOCK_SIZE, REQUESTS = 16, 400
# The longest request each is made for, in tokens.
LONGEST = {"sharegpt-like": 2048, "azure-conv": 16_384, "mooncake-conv": 131_072}
# Means as published for ShareGPT (Kwon et al., SOSP 2023, Fig. 11); the sigmas are ours.
PROMPT, OUTPUT = Spread(161.31, 1.2), Spread(337.99, 0.9)
FITS: dict[str, type[Allocator]] = {"buddy": BuddyArena, "first fit": Arena}
WAYS = ("maximum", "power of two", "oracle", "paged")
_GROUP, _ROLES = 52, ("used", "reserved", "wasted", "paper")


class FourWay(NamedTuple):
    """Shares of a memory on average over a run, told apart as in the PagedAttention paper.

    Attributes:
        used: holds a token.
        reservation: held for tokens that will come.
        internal: asked for and never filled.
        other: all the rest: holes, what an allocator rounds up, what is free.
    """

    used: float
    reservation: float
    internal: float
    other: float


def four_way(run: Simulation) -> FourWay:
    """Splits the memory of a run as the PagedAttention paper's Fig. 2 does.

    Example:
        A request of 3 tokens in the end, alone in 8 slots for one step; 3 are reserved, 4 given:

        >>> one = [Request(0, None, prompt_tokens=2, output_tokens=1)]
        >>> four_way(simulate(one, BuddyArena(8), ReserveMaximum(3)))
        FourWay(used=0.375, reservation=0.0, internal=0.0, other=0.625)
    """
    rounded_up = run.rounded_up / sum(run.unit_steps.values())
    internal = run.share("internal_fragmentation") - rounded_up
    used, reservation = run.share("used"), run.share("reservation")
    return FourWay(used, reservation, internal, 1 - used - reservation - internal)


def serve(
    requests: Sequence[Request], slots: int, most: int, way: str, fit: str
) -> tuple[Simulation, FourWay]:
    """Runs requests in one of the four ways as long as some wait, and splits the memory."""
    policies: dict[str, Reservation] = {
        "maximum": ReserveMaximum(most),
        "power of two": ReservePowerOfTwo(most),
        "oracle": ReserveOracle(most),
        "paged": ReservePrompt(most),
    }
    paged = way == "paged"
    memory = PagedMemory(slots // BLOCK_SIZE, BLOCK_SIZE) if paged else FITS[fit](slots)
    run = simulate(requests, memory, policies[way], drain=False)
    return run, four_way(run)


def slots_of(lengths: str, memory: float) -> int:
    """Returns the slots in which `memory` requests of the longest length have room.

    Example:
        >>> [slots_of(name, 7.68) for name in LONGEST]
        [15728, 125824, 1006592]
    """
    return int(2048 * memory) * (LONGEST[lengths] // 2048)


@cache
def requests_of(lengths: str) -> tuple[Request, ...]:
    """Returns 400 requests, made up or sampled, that all fit the longest length."""
    if lengths == "sharegpt-like":
        return lognormal(REQUESTS, 0, PROMPT, OUTPUT, LONGEST[lengths]).requests
    return sample(lengths, REQUESTS, seed=0).requests


@cache
def served(lengths: str, memory: float, way: str, fit: str) -> tuple[Simulation, FourWay]:
    """Serves one of the workloads; a paged memory does not depend on the fit."""
    return serve(requests_of(lengths), slots_of(lengths, memory), LONGEST[lengths], way, fit)


def _group(canvas: Canvas, y: float, way: str, run: Simulation, parts: FourWay) -> None:
    canvas.text(MARGIN, y, way)
    figures = f"{100 * parts.used:.1f} % used, {run.mean_running:.1f} run at once"
    canvas.text(WIDTH - MARGIN, y, figures, "end", bold=True)
    x = float(MARGIN)
    for role, share in zip(_ROLES, parts, strict=True):
        canvas.rect(x, y + 8, ROOM * share, 16, role, "faint")
        x += ROOM * share


@drawing(
    memory=Slider([1, 2, 4, 7.68], 7.68, "memory (requests of the longest length)"),
    lengths=Choice(list(LONGEST), "sharegpt-like", "lengths"),
    fit=Choice(list(FITS), "buddy", "contiguous pieces"),
)
def budget_admission(memory: float, lengths: str, fit: str) -> str:
    """Draws for four ways how many requests run at once, and the four parts of the memory."""
    runs = {way: served(lengths, memory, way, "" if way == "paged" else fit) for way in WAYS}
    (paged, _), (oracle, _) = runs["paged"], runs["oracle"]
    verdict = (
        f"Paging runs {paged.mean_running / oracle.mean_running:.1f} times as many as the oracle; "
        f"{paged.recomputed_tokens:,} tokens are computed twice."
    )
    slots = f"{slots_of(lengths, memory):,} slots"
    canvas = Canvas(
        "budget_admission",
        146 + _GROUP * len(runs),
        f"{slots}, {REQUESTS} requests in line",
        f"For each way a strip of the memory: {'; '.join(_row(*row) for row in runs.items())}. "
        f"{verdict}",
        under=f"{lengths}, longest {LONGEST[lengths]:,} tokens; contiguous: {fit}",
    )
    for at, role, words in (
        (0, "used", "used"),
        (72, "reserved", "to come"),
        (164, "wasted", "never filled"),
        (276, "paper", "holes, rest"),
    ):
        canvas.key(MARGIN + at, 74, role, words)
    for row, (way, (run, parts)) in enumerate(runs.items()):
        _group(canvas, 106 + _GROUP * row, way, run, parts)
    canvas.paragraph(114 + _GROUP * len(runs), verdict, bold=True)
    return canvas.svg()


def _row(way: str, served: tuple[Simulation, FourWay]) -> str:
    run, parts = served
    return f"{way} {100 * parts.used:.1f} % used, {run.mean_running:.1f} at once"
