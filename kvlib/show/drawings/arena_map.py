"""The same traffic on four allocators: where each puts the pieces, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from random import Random
from typing import NamedTuple

from kvlib.allocator import Allocator, Piece
from kvlib.arena import Arena, best_fit
from kvlib.buddy import BuddyArena
from kvlib.plan import OutOfBlocks
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.fragmentation import fate, strip
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import WIDTH, Canvas
from kvlib.slab import SlabPool

SIZE, CHUNK, EVENTS = 64, 8, 60
ALLOCATORS: dict[str, Callable[[], Allocator]] = {
    "first fit": lambda: Arena(SIZE),
    "best fit": lambda: Arena(SIZE, fit=best_fit),
    "buddy": lambda: BuddyArena(SIZE),
    "slab": lambda: SlabPool(SIZE, CHUNK),
}
RULES = {
    "first fit": "First fit: cut from the lowest hole that is large enough",
    "best fit": "Best fit: cut from the smallest hole that is large enough",
    "buddy": "Buddy: pieces of 1, 2, 4, 8, ... slots",
    "slab": f"Slab: {SIZE // CHUNK} chunks of {CHUNK} slots",
}


class Moment(NamedTuple):
    """An allocator after some events, what the last one was, and how many it refused so far."""

    allocator: Allocator
    event: str
    refused: int


@cache
def traffic() -> tuple[tuple[int, int], ...]:
    """Returns the events, the same for all: (request, slots), with 0 slots where it leaves.

    >>> traffic()[:3]
    ((0, 5), (1, 1), (2, 1))
    """
    draw, events, live, asked = Random("arena map 330"), [], [], 0
    for _ in range(EVENTS):
        held = sum(size for _, size in live)
        if live and (held > 44 or draw.random() < 0.1 + held / 100):
            request, _ = live.pop(int(len(live) * draw.random()))
            events.append((request, 0))
        else:
            size = 1 + int(CHUNK * draw.random() ** 1.5)
            live.append((asked, size))
            events.append(live[-1])
            asked += 1
    return tuple(events)


@cache
def moments(name: str) -> tuple[Moment, ...]:
    """Returns an allocator after 0, 1, 2, ... events; what it refused never leaves it."""
    allocator, live, refused = ALLOCATORS[name](), {}, 0
    seen = [Moment(deepcopy(allocator), "empty", 0)]
    for request, size in traffic():
        if size:
            event = f"request {request} takes {size}"
            try:
                live[request] = allocator.allocate(size)
            except OutOfBlocks:
                refused += 1
                event = f"request {request} is refused {size}"
        else:
            event = leave(allocator, live.pop(request, None), request)
        seen.append(Moment(deepcopy(allocator), event, refused))
    return tuple(seen)


def leave(allocator: Allocator, piece: Piece | None, request: int) -> str:
    """Frees a request's piece and returns what happened; one that was refused has none."""
    if piece is None:
        return f"request {request} had no memory"
    allocator.free(piece)
    return f"request {request} leaves"


@drawing(
    allocator=Choice(list(ALLOCATORS), "first fit", "allocator"),
    event=Slider(range(EVENTS + 1), 50, "events so far"),
    next_size=Slider([1, 2, 3, 4, 6, 8, 12], 8, "next request (slots)"),
)
def arena_map(allocator: str, event: int, next_size: int) -> str:
    """Draws one allocator at one moment of the traffic, with the losses and the next request."""
    memory, last, refused = moments(allocator)[event]
    now, verdict = memory.split(next_size), fate(memory, next_size)
    canvas = Canvas(
        "arena_map",
        268,
        f"{allocator} after {event} events",
        f"A strip of {SIZE} slots under {allocator} after {event} events: {len(memory.pieces)} "
        f"pieces, the largest hole has {memory.largest_hole}. {refused} requests were refused so "
        f"far. {verdict}",
        heading=f"Event {event}: {last}; refused: {refused}" if event else "Nothing yet",
        under=RULES[allocator],
    )
    strip(canvas, memory, next_size)
    rows = (
        ("used", "in use", now.used),
        ("reserved", "internal: given beyond what was asked", now.internal_fragmentation),
        ("wasted", "external: holes of no use to the next", now.external_fragmentation),
        ("paper", "holes that serve the next", now.free),
    )
    shares = [(*row, str(slots), f"{100 * slots / SIZE:.1f} %") for *row, slots in rows]
    canvas.table(136, WIDTH - 84, shares)
    canvas.paragraph(236, verdict, bold=True)
    return canvas.svg()
