"""The buddy system: pieces of a power of two, which split in halves and join with their buddy.

Rounding up costs memory inside the pieces; in return a piece finds its neighbour by arithmetic.

Source: Knowlton, "A fast storage allocator", CACM 1965; Knuth, TAOCP vol. 1, section 2.5.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from kvlib.allocator import Allocator, Piece
from kvlib.sizes import whole_number


def power_of_two(size: int) -> int:
    """Returns the smallest power of two that is at least `size`.

    Example:
        >>> [power_of_two(n) for n in (1, 2, 3, 8, 9)]
        [1, 2, 4, 8, 16]
    """
    whole_number("size", size)
    return 1 << (size - 1).bit_length()


class BuddyArena(Allocator):
    """Hands out the smallest power of two that holds a request.

    A piece of size `s` starts at a multiple of `s`; its *buddy* is the one other half of the piece
    of `2 s` it was split from, at `start ^ s`. Only buddies join, so two free neighbours may stay
    apart. A size that is no power of two starts as the sum of its powers, the largest first.

    Args:
        size: units in all.

    Raises:
        TypeError, ValueError: the size is not a whole number of at least 1.

    Example:
        Asked for 3, it gives 4, from the lower half of the lower half of 16:

        >>> arena = BuddyArena(16)
        >>> arena.allocate(3)
        Piece(start=0, size=4)
        >>> arena.holes
        (Piece(start=4, size=4), Piece(start=8, size=8))
        >>> arena.split(next_size=8).internal_fragmentation
        1
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._largest = 1 << (size.bit_length() - 1)
        self._starts: dict[int, list[int]] = {1 << k: [] for k in range(size.bit_length())}
        at = 0
        for power in reversed(self._starts):
            if size & power:
                self._starts[power].append(at)
                at += power

    @property
    def holes(self) -> tuple[Piece, ...]:
        """The free pieces, by address; neighbours that are not buddies may touch."""
        return tuple(sorted(Piece(at, size) for size in self._starts for at in self._starts[size]))

    @property
    def largest_request(self) -> int:
        """The largest power of two within the size."""
        return self._largest

    def piece_size(self, size: int) -> int:
        """Returns the smallest power of two that is at least `size`."""
        return power_of_two(size)

    def check(self) -> None:
        """Proves what every allocator promises, that pieces are aligned, and that buddies joined.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        for piece in (*self.holes, *self.pieces):
            assert piece.size == power_of_two(piece.size), f"no power of two: {piece}"
            assert piece.start % piece.size == 0, f"not aligned to its size: {piece}"
        for size, starts in self._starts.items():
            assert not {at ^ size for at in starts} & set(starts), f"free buddies of {size} apart"

    def _take(self, size: int) -> Piece | None:
        wanted = power_of_two(size)
        enough = [s for s in self._starts if s >= wanted and self._starts[s]]
        if not enough:
            return None
        piece = Piece(self._starts[enough[0]].pop(0), enough[0])
        return self._halve(piece, wanted)

    def _halve(self, piece: Piece, wanted: int) -> Piece:
        """Splits a piece until it has `wanted` units; the upper halves become holes."""
        while piece.size > wanted:
            piece = Piece(piece.start, piece.size // 2)
            insort(self._starts[piece.size], piece.end)
        return piece

    def _buddy(self, piece: Piece) -> int | None:
        """Returns where in its list of holes the piece's buddy stands, if it is free."""
        starts = self._starts[piece.size]
        index = bisect_left(starts, piece.start ^ piece.size)
        return index if starts[index : index + 1] == [piece.start ^ piece.size] else None

    def _give(self, piece: Piece) -> None:
        while (index := self._buddy(piece)) is not None:
            buddy = self._starts[piece.size].pop(index)
            piece = Piece(min(piece.start, buddy), 2 * piece.size)
        insort(self._starts[piece.size], piece.start)

    def _in_place(self, piece: Piece, size: int) -> Piece | None:
        wanted = power_of_two(size)
        grown, upper = piece, []
        while grown.size < wanted:
            if grown.start & grown.size or self._buddy(grown) is None:
                return None
            upper.append(grown)
            grown = Piece(grown.start, 2 * grown.size)
        for half in upper:
            self._starts[half.size].remove(half.end)
        if grown.size == wanted == piece.size:
            return piece
        return self._halve(grown, wanted)
