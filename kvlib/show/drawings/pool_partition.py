"""One memory for all languages, or a part of it for each: which requests are rejected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from random import Random

from kvlib import workloads
from kvlib.arena import Arena
from kvlib.request import Request
from kvlib.reservation import ReserveOracle
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.simulate import Simulation, simulate

SHARES = {"Python": 55, "JavaScript": 25, "Java": 15, "Rust": 5}
ALL = "all languages"
SLOTS, STEP_S, REQUESTS = 15_728, 0.03, 400
_GROUP = 48


def languages(num_requests: int, seed: int) -> list[str]:
    """Draws a language for each request, 55, 25, 15 and 5 %: no public trace says which it was.

    >>> languages(5, seed=0)
    ['Java', 'Python', 'Python', 'Python', 'JavaScript']
    """
    drawn = Random(f"languages {seed}")
    deck = [language for language, percent in SHARES.items() for _ in range(percent)]
    return [deck[int(100 * drawn.random())] for _ in range(num_requests)]


def parts(slots: int, partition: str) -> dict[str, int]:
    """Returns the slots of each pool: one `shared`, or four, `proportional` or `equal`.

    >>> parts(1000, "proportional")
    {'Python': 550, 'JavaScript': 250, 'Java': 150, 'Rust': 50}
    """
    if partition == "shared":
        return {ALL: slots}
    equal = partition == "equal"
    return {name: slots // 4 if equal else slots * of // 100 for name, of in SHARES.items()}


def serve(
    requests: Iterable[Request], labels: Sequence[str], pools: Mapping[str, int]
) -> dict[str, Simulation]:
    """Serves each pool's requests from its own memory; one that finds no room is turned away.

    Each reserves exactly what it will need, and a token takes 30 ms.
    """
    tagged = list(zip(requests, labels, strict=True))
    return {
        pool: simulate(
            [request for request, label in tagged if pool in (label, ALL)],
            Arena(slots), ReserveOracle(), step_s=STEP_S, patience_steps=0,
        )
        for pool, slots in pools.items()
    }  # fmt: skip


def rejected(runs: Mapping[str, Simulation]) -> float:
    """Returns the rejected requests of all pools in percent: never fit, or found no room."""
    lost = sum(run.refused + run.turned_away for run in runs.values())
    return 100 * lost / sum(run.num_requests for run in runs.values())


@cache
def _sample(slots: int, partition: str, gaps: str) -> dict[str, Simulation]:
    code = workloads.sample("azure-code", REQUESTS, seed=0, gaps=gaps)
    return serve(code, languages(REQUESTS, seed=0), parts(slots, partition))


_GAPS = {"poisson": "Poisson", "trace": "gaps of the trace"}


@drawing(
    slots=Slider([SLOTS, 2 * SLOTS, 4 * SLOTS, 8 * SLOTS], 2 * SLOTS, "memory (slots)", "{:,}"),
    partition=Choice(["shared", "proportional", "equal"], "proportional", "parts"),
    gaps=Choice(list(_GAPS), "poisson", "arrivals", _GAPS),
)
def pool_partition(slots: int, partition: str, gaps: str) -> str:
    """Draws the pools of a memory and, for each, which of its requests were rejected."""
    runs, pools = _sample(slots, partition, gaps), parts(slots, partition)
    verdict = f"{rejected(runs):.1f} % of all requests are rejected."
    canvas = Canvas(
        "pool_partition",
        134 + _GROUP * len(runs),
        f"{slots:,} slots, {'one pool' if partition == 'shared' else f'{partition} parts'}",
        f"{REQUESTS} code requests in {len(runs)} pool(s); for each a bar of served requests, of "
        f"those that found no room and of those that could never fit. {verdict}",
        under=f"{REQUESTS} requests of an azure-code sample, languages at random",
    )
    for x, role, words in (
        (0, "used", "served"),
        (90, "reserved", "found no room"),
        (226, "wasted", "could never fit"),
    ):
        canvas.key(MARGIN + x, 72, role, words)
    for index, (pool, run) in enumerate(runs.items()):
        y, lost = 102 + index * _GROUP, run.refused + run.turned_away
        share = f"{lost} of {run.num_requests} rejected"
        canvas.text(MARGIN, y, f"{pool}: {pools[pool]:,} slots")
        canvas.text(WIDTH - MARGIN, y, share, "end", bold=True)
        x = MARGIN
        for role, count in (
            ("used", run.finished),
            ("reserved", run.turned_away),
            ("wasted", run.refused),
        ):
            width = ROOM * count / run.num_requests
            canvas.rect(x, y + 8, width, 16, role)
            x += width
    canvas.paragraph(112 + _GROUP * len(runs), verdict, bold=True)
    return canvas.svg()
