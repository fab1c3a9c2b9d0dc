"""What every allocator of contiguous pieces shares: handles, refusals, the split into losses.

`kvlib.arena` cuts pieces to size, `kvlib.buddy` rounds them up to powers of two, `kvlib.slab` hands
out chunks of one size. All three are driven, checked and judged in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.sizes import whole_number
from kvlib.waste import Allocation, MemorySplit, split


class Piece(NamedTuple):
    """The half-open range of addresses `[start, start + size)`.

    An allocator takes back the very object it handed out, not an equal one. So a piece that is
    freed twice is refused even when somebody else has been given the same range meanwhile.
    """

    start: int
    size: int

    @property
    def end(self) -> int:
        """The first address behind the piece."""
        return self.start + self.size


class Allocator(ABC):
    """Hands out contiguous pieces of one run of memory and takes them back.

    The unit is the caller's: bytes, tokens or slots. A piece may be larger than what was asked for;
    `asked` remembers, and `split` shows the difference as internal fragmentation.

    Args:
        size: units in all.

    Raises:
        TypeError, ValueError: the size is not a whole number of at least 1.
    """

    def __init__(self, size: int) -> None:
        whole_number("size", size)
        self.size = size
        self._live: dict[int, Piece] = {}
        self._asked: dict[int, int] = {}

    @property
    @abstractmethod
    def holes(self) -> tuple[Piece, ...]:
        """The free pieces, by address."""

    @property
    @abstractmethod
    def largest_request(self) -> int:
        """Units of the largest request that could be met if everything were free."""

    @abstractmethod
    def piece_size(self, size: int) -> int:
        """Returns the units that a request of `size` really takes."""

    @abstractmethod
    def _take(self, size: int) -> Piece | None:
        """Cuts a piece out of a hole, or returns None and changes nothing."""

    @abstractmethod
    def _give(self, piece: Piece) -> None:
        """Makes a hole of the piece."""

    @abstractmethod
    def _in_place(self, piece: Piece, size: int) -> Piece | None:
        """Moves only the end of a piece, or returns None and changes nothing."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces handed out, by address."""
        return tuple(self._live[start] for start in sorted(self._live))

    @property
    def num_free(self) -> int:
        """Units free in all."""
        return sum(hole.size for hole in self.holes)

    @property
    def largest_hole(self) -> int:
        """Units of the largest free piece: the largest request that could be met now."""
        return max((hole.size for hole in self.holes), default=0)

    def can_allocate(self, size: int) -> bool:
        """Answers whether `size` units in one piece are to be had now."""
        whole_number("size", size)
        return self._usable(size) > 0

    def asked(self, piece: Piece) -> int:
        """Returns how much was asked for when the piece was handed out or last resized.

        Raises:
            ValueError: the piece is not handed out.
        """
        self._refuse_unknown(piece)
        return self._asked[piece.start]

    def grown(self, piece: Piece) -> int:
        """Returns what a full piece asks for next: twice as much, since it may have to move."""
        return 2 * piece.size

    def allocate(self, size: int) -> Piece:
        """Hands out a piece of at least `size` units.

        Raises:
            TypeError, ValueError: the size is not a whole number of at least 1.
            SequenceTooLong: it would not fit if everything were free.
            OutOfBlocks: no hole is large enough now; says how much is free, and in what pieces. In
                each case nothing changes.
        """
        self._refuse_impossible(size)
        piece = self._take(size)
        if piece is None:
            raise OutOfBlocks(self._shortage(size))
        self._enter(piece, size)
        return piece

    def free(self, piece: Piece) -> None:
        """Takes a piece back.

        Raises:
            ValueError: the piece is not handed out: freed before, resized since, or from elsewhere.
                Nothing changes.
        """
        self._refuse_unknown(piece)
        del self._live[piece.start], self._asked[piece.start]
        self._give(piece)

    def resize(self, piece: Piece, size: int) -> Piece:
        """Returns the piece that takes the place of `piece`, which is no longer handed out.

        Where the start is the same, nothing moved. Otherwise the caller copies what it holds: old
        and new piece exist at once, so that a request can grow only into memory that is free now.

        Raises:
            TypeError, ValueError: the size is not a whole number of at least 1, or the piece is not
                handed out.
            SequenceTooLong, OutOfBlocks: as for `allocate`; the old piece stays as it is.
        """
        self._refuse_unknown(piece)
        self._refuse_impossible(size)
        new = self._in_place(piece, size)
        if new is None:
            new = self.allocate(size)
            self.free(piece)
        else:
            self._enter(new, size)
        return new

    def split(
        self, next_size: int, used: Mapping[Piece, tuple[int, int]] | None = None
    ) -> MemorySplit:
        """Splits the memory among what is used and the three losses.

        Free memory that a request of `next_size` cannot be given is external fragmentation; what a
        piece has beyond what will be used of it is internal fragmentation.

        Args:
            next_size: the request that would come next, at least 1.
            used: for a piece how much of it is used now and how much will be in the end; of a piece
                that is not named, all that was asked for is used.

        Raises:
            TypeError, ValueError: `next_size` is not a whole number of at least 1; `used` names a
                piece that is not handed out, or gives it more than its size.
        """
        whole_number("next_size", next_size)
        used = used or {}
        if strangers := [piece for piece in used if self._live.get(piece.start) != piece]:
            raise ValueError(f"{strangers[0]} is not handed out")
        asked = ((p, self._asked[p.start]) for p in self.pieces)
        allocations = [Allocation(p.size, *used.get(p, (units, units))) for p, units in asked]
        return split(self.size, allocations, usable_free=self._usable(next_size))

    def check(self) -> None:
        """Proves that holes and pieces tile the memory and that no piece is smaller than asked.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        at = 0
        for piece in sorted([*self.holes, *self._live.values()]):
            assert piece.start == at, f"a gap or an overlap at {at}: {piece}"
            assert piece.size > 0, f"an empty piece: {piece}"
            at = piece.end
        assert at == self.size, f"units lost: {self.size - at}"
        assert self._asked.keys() == self._live.keys(), "a piece without its request"
        for start, piece in self._live.items():
            assert start == piece.start, f"{piece} is filed under {start}"
            assert 1 <= self._asked[start] <= piece.size, f"{piece} is too small for its request"

    def _usable(self, size: int) -> int:
        least = self.piece_size(size)
        return sum(hole.size for hole in self.holes if hole.size >= least)

    def _shortage(self, size: int) -> str:
        return (
            f"asked for {size} in one piece, {self.num_free} free of {self.size}, "
            f"the largest hole has {self.largest_hole}"
        )

    def _enter(self, piece: Piece, size: int) -> None:
        self._live[piece.start] = piece
        self._asked[piece.start] = size

    def _refuse_impossible(self, size: int) -> None:
        whole_number("size", size)
        if size > self.largest_request:
            raise SequenceTooLong(
                f"asked for {size} in one piece, at most {self.largest_request} of {self.size} "
                "could ever be given"
            )

    def _refuse_unknown(self, piece: Piece) -> None:
        if not isinstance(piece, Piece) or self._live.get(piece.start) is not piece:
            raise ValueError(f"{piece} is not handed out: freed before, or not from here")
