"""Segments that are cut into pieces: a model of PyTorch's CUDA caching allocator, in bytes.

Source: PyTorch 2.13, c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

from kvlib.allocator import Piece
from kvlib.arena import Arena, best_fit
from kvlib.sizes import whole_number

MIB = 2**20
MIN_BLOCK_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB  # from here on a new segment is as large as the request
_ENDLESS = 2**48


class Block(NamedTuple):
    """A piece and the segment it was cut from."""

    segment: Arena
    piece: Piece


def _up_to(size: int, multiple: int) -> int:
    """Returns the smallest multiple that is at least `size`."""
    return -(-size // multiple) * multiple


def _segment_bytes(size: int) -> int:
    """Returns how much the driver is asked for when no segment has room for `size`.

    Example:
        >>> [_segment_bytes(n * MIB) // MIB for n in (1, 2, 9, 10, 11)]
        [2, 20, 20, 10, 12]
    """
    if size < OWN_SEGMENT_BYTES:
        return SMALL_SEGMENT_BYTES if size <= SMALL_BYTES else LARGE_SEGMENT_BYTES
    return _up_to(size, SMALL_SEGMENT_BYTES)


class SegmentPool:
    """Hands out blocks of segments, by best fit; requests up to 1 MiB share no segment with larger.

    The driver never refuses here; where it does, PyTorch gives segments that are wholly free back
    and asks again. Streams, which PyTorch keeps apart, are left out.

    Args:
        expandable: one segment for each kind of request, which grows at its end by 2 or 20 MiB.

    Example:
        A third request of 9 MiB finds no room in the 20 MiB of the first two:

        >>> pool = SegmentPool()
        >>> blocks = [pool.allocate(9 * MIB) for _ in range(3)]
        >>> pool.reserved_bytes // MIB
        40
        >>> pool.layout()[0]
        [('used', 9437184), ('used', 9437184), ('free', 2097152)]
    """

    def __init__(self, expandable: bool = False) -> None:
        self.expandable = expandable
        self._segments: dict[bool, list[Arena]] = {True: [], False: []}
        self._ends = {True: 0, False: 0}

    @property
    def segments(self) -> tuple[Arena, ...]:
        """All segments, those for small requests first."""
        return (*self._segments[True], *self._segments[False])

    @property
    def used_bytes(self) -> int:
        """Bytes handed out now, rounding included."""
        return sum(piece.size for segment in self.segments for piece in segment.pieces)

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the driver; none go back, as long as nobody asks."""
        if not self.expandable:
            return sum(segment.size for segment in self.segments)
        pages = {True: SMALL_SEGMENT_BYTES, False: LARGE_SEGMENT_BYTES}
        return sum(_up_to(self._ends[small], pages[small]) for small in pages)

    def allocate(self, size: int) -> Block:
        """Returns a block of at least `size` bytes, from a new segment where none has room.

        Raises:
            TypeError, ValueError: the size is not a whole number of at least 1. Nothing changes.
        """
        whole_number("size", size)
        need = _up_to(size, MIN_BLOCK_BYTES)
        small = need <= SMALL_BYTES
        segments = self._segments[small]
        holes = [(hole.size, i) for i, s in enumerate(segments) for hole in s.holes]
        room, index = min((found for found in holes if found[0] >= need), default=(0, 0))
        if not room:
            room = max(_ENDLESS, need) if self.expandable else _segment_bytes(need)
            segments.append(Arena(room, fit=best_fit))
            index = len(segments) - 1
        # A large block is not split where too little would remain for a large request.
        whole = not small and not self.expandable and room - need <= SMALL_BYTES
        piece = segments[index].allocate(room if whole else need)
        self._ends[small] = max(self._ends[small], piece.end)
        return Block(segments[index], piece)

    def free(self, block: Block) -> None:
        """Takes a block back; its segment stays.

        Raises:
            ValueError: the block is not handed out, or from another pool. Nothing changes.
        """
        if not any(segment is block.segment for segment in self.segments):
            raise ValueError(f"{block.piece} is not from a segment of this pool")
        block.segment.free(block.piece)

    def layout(self) -> list[list[tuple[str, int]]]:
        """Returns each segment by address as pairs: `used` or `free`, and bytes."""
        rows = []
        for segment in self.segments:
            found = [(p.start, "used", p.size) for p in segment.pieces]
            found += [(h.start, "free", h.size) for h in segment.holes]
            rows.append([(kind, size) for _, kind, size in sorted(found)])
            if self.expandable:
                rows[-1] = [each for each in rows[-1] if each[1] < _ENDLESS // 2]
        return rows

    def check(self) -> None:
        """Proves each segment's books, and that no small request lies among large ones.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        for small, segments in self._segments.items():
            for segment in segments:
                segment.check()
                for piece in segment.pieces:
                    assert (piece.size <= SMALL_BYTES) == small, f"{piece} is in a wrong segment"
                    assert piece.end <= self._ends[small], f"{piece} lies behind the end"
        used, reserved = self.used_bytes, self.reserved_bytes
        assert used <= reserved, f"{used} bytes used of {reserved} reserved"
