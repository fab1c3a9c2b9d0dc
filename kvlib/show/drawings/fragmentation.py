"""An arena through time: pieces come and go, and the free memory falls apart."""

from __future__ import annotations

from functools import cache
from random import Random

from kvlib.arena import Arena
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

SIZE = 64
EVENTS = 40
_TOP, _HIGH = 62, 46


@cache
def arenas() -> tuple[Arena, ...]:
    """Returns the arena after 0, 1, 2, ... events of one seeded traffic.

    Requests of 1 to 6 slots come while more than 22 are free; then a piece at random is freed
    about as often as one is asked for.

    >>> [arena.num_free for arena in arenas()[:4]]
    [64, 61, 59, 55]
    """
    draw = Random("fragmentation 9")
    seen, moves = [Arena(SIZE)], []
    for _ in range(EVENTS):
        size, pieces = 1 + int(6 * draw.random()), seen[-1].pieces
        full = seen[-1].num_free <= 22 and draw.random() < 0.55
        if full or not seen[-1].can_allocate(size):
            moves.append((Arena.free, pieces[int(len(pieces) * draw.random())]))
        else:
            moves.append((Arena.allocate, size))
        arena = Arena(SIZE)
        for move, what in moves:
            move(arena, what)
        seen.append(arena)
    return tuple(seen)


@drawing(
    event=Slider(range(EVENTS + 1), 36, "events so far"),
    next_size=Slider([2, 4, 6, 8, 12, 16], 8, "next request (slots)"),
)
def fragmentation(event: int, next_size: int) -> str:
    """Draws an arena of slots, its pieces and its holes, and whether the next request fits."""
    arena = arenas()[event]
    now = arena.split(next_size)
    fits = arena.can_allocate(next_size)
    if fits or arena.num_free < next_size:
        fate = "fits" if fits else "is refused: too few slots are free"
        verdict = f"A request of {next_size} {fate}."
    else:
        verdict = f"A request of {next_size} is refused, though {arena.num_free} slots are free."
    canvas = Canvas(
        "fragmentation",
        246,
        f"{SIZE} slots after {event} events",
        f"A strip of {SIZE} slots with {len(arena.pieces)} pieces in use and {len(arena.holes)} "
        f"holes, the largest of {arena.largest_hole}. {verdict}",
        under="First fit; a piece is one run of slots",
    )
    slot = ROOM / SIZE
    for piece in arena.pieces:
        canvas.rect(MARGIN + piece.start * slot, _TOP, piece.size * slot, _HIGH, "used", "paper")
    for hole in arena.holes:
        role = "paper" if hole.size >= next_size else "wasted"
        canvas.rect(MARGIN + hole.start * slot, _TOP, hole.size * slot, _HIGH, role, "faint")
    rows = (
        ("used", "in use", now.used),
        ("paper", "holes large enough", now.free),
        ("wasted", "external: holes too small", now.external_fragmentation),
    )
    canvas.table(
        136,
        WIDTH - 84,
        [(*row, str(slots), f"{100 * slots / SIZE:.1f} %") for *row, slots in rows],
    )
    canvas.paragraph(210, verdict, bold=True)
    return canvas.svg()
