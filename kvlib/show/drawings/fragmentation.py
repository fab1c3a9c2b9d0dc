"""An arena through time: pieces come and go, and the free memory falls apart."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from random import Random

from kvlib.allocator import Allocator
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
    seen = [Arena(SIZE)]
    for _ in range(EVENTS):
        arena = deepcopy(seen[-1])
        size = 1 + int(6 * draw.random())
        full = arena.num_free <= 22 and draw.random() < 0.55
        if full or not arena.can_allocate(size):
            arena.free(arena.pieces[int(len(arena.pieces) * draw.random())])
        else:
            arena.allocate(size)
        seen.append(arena)
    return tuple(seen)


def fate(allocator: Allocator, next_size: int) -> str:
    """Returns in one sentence whether the next request fits, and if not, why not."""
    if next_size > allocator.largest_request:
        return f"A request of {next_size} never fits: at most {allocator.largest_request} does."
    if allocator.can_allocate(next_size):
        return f"A request of {next_size} fits."
    if allocator.num_free < next_size:
        return f"A request of {next_size} is refused: too few slots are free."
    return f"A request of {next_size} is refused, though {allocator.num_free} slots are free."


def strip(canvas: Canvas, allocator: Allocator, next_size: int) -> None:
    """Draws the pieces, what each has beyond what was asked for, and the holes, by address."""
    slot = ROOM / allocator.size
    for piece in allocator.pieces:
        asked, left = allocator.asked(piece), MARGIN + piece.start * slot
        canvas.rect(left, _TOP, asked * slot, _HIGH, "used", "paper")
        if piece.size > asked:
            rest = (piece.size - asked) * slot
            canvas.rect(left + asked * slot, _TOP, rest, _HIGH, "reserved", "paper")
    serves = allocator.can_allocate(next_size)
    for hole in allocator.holes:
        role = "paper" if serves and hole.size >= allocator.piece_size(next_size) else "wasted"
        canvas.rect(MARGIN + hole.start * slot, _TOP, hole.size * slot, _HIGH, role, "faint")


@drawing(
    event=Slider(range(EVENTS + 1), 36, "events so far"),
    next_size=Slider([2, 4, 6, 8, 12, 16], 8, "next request (slots)"),
)
def fragmentation(event: int, next_size: int) -> str:
    """Draws an arena of slots, its pieces and its holes, and whether the next request fits."""
    arena = arenas()[event]
    now = arena.split(next_size)
    verdict = fate(arena, next_size)
    canvas = Canvas(
        "fragmentation",
        246,
        f"{SIZE} slots after {event} events",
        f"A strip of {SIZE} slots with {len(arena.pieces)} pieces in use and {len(arena.holes)} "
        f"holes, the largest of {arena.largest_hole}. {verdict}",
        under="First fit; a piece is one run of slots",
    )
    strip(canvas, arena, next_size)
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
