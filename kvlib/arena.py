"""One run of memory handed out in contiguous pieces, and how it comes apart.

An arena has addresses, so fragmentation can happen in it: enough memory free in all, none of it in
one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvlib.plan import OutOfBlocks
from kvlib.sizes import whole_number
from kvlib.waste import Allocation, MemorySplit, split


class Piece(NamedTuple):
    """The half-open range of addresses `[start, start + size)`."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The first address behind the piece."""
        return self.start + self.size


Fit = Callable[[Sequence[Piece], int], Piece | None]


def first_fit(holes: Sequence[Piece], size: int) -> Piece | None:
    """Returns the lowest hole that is large enough, or None."""
    return next((hole for hole in holes if hole.size >= size), None)


class Arena:
    """Hands out contiguous pieces and takes them back; neighbouring holes become one.

    The unit is the caller's: bytes, tokens or slots.

    Args:
        size: units in all.
        fit: which hole an allocation is cut from.

    Raises:
        TypeError, ValueError: the size is not a whole number of at least 1.

    Example:
        Four pieces of 2 fill 8 units. With every other one freed, 4 are free, and 3 do not fit:

        >>> arena = Arena(8)
        >>> pieces = [arena.allocate(2) for _ in range(4)]
        >>> arena.free(pieces[0]); arena.free(pieces[2])
        >>> arena.num_free, arena.largest_hole, arena.can_allocate(3)
        (4, 2, False)
    """

    def __init__(self, size: int, fit: Fit = first_fit) -> None:
        whole_number("size", size)
        self.size = size
        self._fit = fit
        self._holes = [Piece(0, size)]
        self._live: dict[int, Piece] = {}

    @property
    def holes(self) -> tuple[Piece, ...]:
        """The free pieces, by address; no two touch."""
        return tuple(self._holes)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces handed out, by address."""
        return tuple(self._live[start] for start in sorted(self._live))

    @property
    def num_free(self) -> int:
        """Units free in all."""
        return sum(hole.size for hole in self._holes)

    @property
    def largest_hole(self) -> int:
        """Units of the largest free piece: the largest request that could be met now."""
        return max((hole.size for hole in self._holes), default=0)

    def can_allocate(self, size: int) -> bool:
        """Answers whether `size` units in one piece are to be had now."""
        return self._fit(self._holes, size) is not None

    def allocate(self, size: int) -> Piece:
        """Cuts a piece from the front of a hole.

        Raises:
            TypeError, ValueError: the size is not a whole number of at least 1.
            OutOfBlocks: no hole is large enough; says how much is free, and in what pieces. In each
                case nothing changes.
        """
        whole_number("size", size)
        hole = self._fit(self._holes, size)
        if hole is None:
            raise OutOfBlocks(
                f"asked for {size} in one piece, {self.num_free} free of {self.size}, "
                f"the largest hole has {self.largest_hole}"
            )
        index = self._holes.index(hole)
        rest = Piece(hole.start + size, hole.size - size)
        self._holes[index : index + 1] = [rest] if rest.size else []
        piece = Piece(hole.start, size)
        self._live[piece.start] = piece
        return piece

    def free(self, piece: Piece) -> None:
        """Takes a piece back and joins it with the holes it touches.

        Raises:
            ValueError: the piece is not handed out: freed before, or never. Nothing changes.
        """
        if self._live.get(piece.start) != piece:
            raise ValueError(f"{piece} is not handed out: freed before, or not from this arena")
        del self._live[piece.start]
        joined = sorted([*self._holes, piece])
        self._holes = joined[:1]
        for hole in joined[1:]:
            last = self._holes[-1]
            if last.end == hole.start:
                self._holes[-1] = Piece(last.start, last.size + hole.size)
            else:
                self._holes.append(hole)

    def split(
        self, next_size: int, used: dict[Piece, tuple[int, int]] | None = None
    ) -> MemorySplit:
        """Splits the arena among what is used and the three losses.

        Free memory in holes too small for `next_size` counts as external fragmentation.

        Args:
            next_size: the request that would come next.
            used: for a piece how much of it is used now and how much will be in the end; a piece
                that is not named is full.
        """
        used = used or {}
        allocations = [Allocation(p.size, *used.get(p, (p.size, p.size))) for p in self.pieces]
        usable = sum(hole.size for hole in self._holes if hole.size >= next_size)
        return split(self.size, allocations, usable_free=usable)

    def check(self) -> None:
        """Proves that holes and pieces tile the arena, and that no two holes touch.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        at = 0
        for piece in sorted([*self._holes, *self._live.values()]):
            assert piece.start == at, f"a gap or an overlap at {at}: {piece}"
            at = piece.end
        assert at == self.size, f"units lost: {self.size - at}"
        ends = {hole.end for hole in self._holes}
        assert not ends & {hole.start for hole in self._holes}, "two holes touch"
