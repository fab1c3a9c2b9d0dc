"""One run of memory handed out in contiguous pieces, and how it comes apart.

An arena has addresses, so fragmentation can happen in it: enough memory free in all, none of it in
one piece.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from kvlib.allocator import Allocator, Piece
from kvlib.sizes import whole_number

Fit = Callable[[Sequence[Piece], int], Piece | None]


def first_fit(holes: Sequence[Piece], size: int) -> Piece | None:
    """Returns the lowest hole that is large enough, or None."""
    return next((hole for hole in holes if hole.size >= size), None)


def best_fit(holes: Sequence[Piece], size: int) -> Piece | None:
    """Returns the smallest hole that is large enough, the lowest among equals, or None.

    Example:
        >>> best_fit([Piece(0, 9), Piece(20, 4), Piece(30, 4)], 3)
        Piece(start=20, size=4)
    """
    return min(
        (hole for hole in holes if hole.size >= size), key=lambda hole: hole.size, default=None
    )


class Arena(Allocator):
    """Cuts pieces to size from the front of a hole; neighbouring holes become one.

    Args:
        size: units in all.
        fit: which hole an allocation is cut from, or None where it finds none.

    Raises:
        TypeError, ValueError: the size is not a whole number of at least 1. Later also ValueError:
            `fit` chose what is no hole, or one that is too small. Nothing changes.

    Example:
        Four pieces of 2 fill 8 units. With every other one freed, 4 are free, and 3 do not fit:

        >>> arena = Arena(8)
        >>> pieces = [arena.allocate(2) for _ in range(4)]
        >>> arena.free(pieces[0]); arena.free(pieces[2])
        >>> arena.num_free, arena.largest_hole, arena.can_allocate(3)
        (4, 2, False)
    """

    def __init__(self, size: int, fit: Fit = first_fit) -> None:
        super().__init__(size)
        self._fit = fit
        self._holes = [Piece(0, size)]

    @property
    def holes(self) -> tuple[Piece, ...]:
        """The free pieces, by address; no two touch."""
        return tuple(self._holes)

    @property
    def largest_request(self) -> int:
        """The whole arena."""
        return self.size

    def piece_size(self, size: int) -> int:
        """Returns `size`: a piece is cut to it."""
        return size

    def can_allocate(self, size: int) -> bool:
        """Answers whether `size` units in one piece are to be had now."""
        whole_number("size", size)
        return self._chosen(size) is not None

    def compact(self) -> list[tuple[Piece, Piece]]:
        """Moves all pieces to the front, in their order, and makes one hole of all the holes.

        The old handles of moved pieces are no longer good. Copies in the order of the list never
        overwrite what is still to be moved, though a piece's old and new place may overlap.

        Returns:
            Old and new piece of each that moves; the caller copies their contents.

        Example:
            >>> arena = Arena(8)
            >>> pieces = [arena.allocate(2) for _ in range(4)]
            >>> arena.free(pieces[0]); arena.free(pieces[2])
            >>> arena.compact()[0]
            (Piece(start=2, size=2), Piece(start=0, size=2))
            >>> arena.holes
            (Piece(start=4, size=4),)
        """
        at, moves, asked = 0, [], self._asked
        old_pieces = self.pieces
        self._live, self._asked = {}, {}
        for old in old_pieces:
            new = old if old.start == at else Piece(at, old.size)
            if new is not old:
                moves.append((old, new))
            self._enter(new, asked[old.start])
            at = new.end
        self._holes = [Piece(at, self.size - at)] if at < self.size else []
        return moves

    def check(self) -> None:
        """Proves what every allocator promises, and that no two holes touch.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        ends = {hole.end for hole in self._holes}
        assert not ends & {hole.start for hole in self._holes}, "two holes touch"

    def _chosen(self, size: int) -> Piece | None:
        hole = self._fit(self.holes, size)
        if hole is not None and (hole.size < size or hole not in self._holes):
            raise ValueError(f"fit chose {hole} for {size}: no hole, or too small a one")
        return hole

    def _take(self, size: int) -> Piece | None:
        hole = self._chosen(size)
        if hole is None:
            return None
        index = bisect_left(self._holes, hole)
        rest = Piece(hole.start + size, hole.size - size)
        self._holes[index : index + 1] = [rest] if rest.size else []
        return Piece(hole.start, size)

    def _give(self, piece: Piece) -> None:
        start, end = piece.start, piece.end
        low = high = bisect_left(self._holes, piece)
        if low and self._holes[low - 1].end == start:
            low -= 1
            start = self._holes[low].start
        if high < len(self._holes) and self._holes[high].start == end:
            end = self._holes[high].end
            high += 1
        self._holes[low:high] = [Piece(start, end - start)]

    def _in_place(self, piece: Piece, size: int) -> Piece | None:
        index = bisect_left(self._holes, piece)
        behind = self._holes[index : index + 1]
        touches = bool(behind) and behind[0].start == piece.end
        end = behind[0].end if touches else piece.end
        if piece.start + size > end:
            return None
        new = Piece(piece.start, size)
        rest = [Piece(new.end, end - new.end)] if new.end < end else []
        self._holes[index : index + touches] = rest
        return new
