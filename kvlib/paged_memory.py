"""One memory handed out in whole blocks: what `kvlib.simulate` runs in place of an allocator.

It answers the same questions as an allocator of contiguous pieces, so that one loop counts both. It
knows no tokens and no tables; `kvlib.paged_ledger` gives blocks to the sequences of a real cache.

Source: Kwon et al., SOSP 2023, §4.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvlib.block_table import num_blocks_for
from kvlib.blocks import BlockPool
from kvlib.plan import SequenceTooLong
from kvlib.sizes import whole_number
from kvlib.waste import MemorySplit


@dataclass(slots=True, eq=False)
class PagedPiece:
    """Blocks that belong to one request, wherever they lie; it grows and shrinks in place.

    Attributes:
        block_ids: the blocks, in logical order.
        block_size: units of each.
        asked: units that were asked for, at most `size`.
    """

    block_ids: list[int]
    block_size: int
    asked: int

    @property
    def size(self) -> int:
        """Units of all its blocks."""
        return len(self.block_ids) * self.block_size

    @property
    def start(self) -> int:
        """The slot of its first unit; it stays the same as long as the piece is handed out."""
        return self.block_ids[0] * self.block_size


class PagedMemory:
    """Hands out blocks of one size; any block serves anybody, so no hole is ever too small.

    Args:
        num_blocks: usable blocks.
        block_size: units of each.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1.

    Example:
        Blocks of 2. The first piece grows behind the second without a copy:

        >>> memory = PagedMemory(4, block_size=2)
        >>> a, b = memory.allocate(3), memory.allocate(1)
        >>> a = memory.resize(a, memory.grown(a))
        >>> a.size, a.block_ids, memory.num_free
        (6, [0, 1, 3], 0)
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        whole_number("block_size", block_size)
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.size = num_blocks * block_size
        self._live: dict[PagedPiece, None] = {}
        self._asked = 0

    @property
    def pieces(self) -> tuple[PagedPiece, ...]:
        """The pieces handed out, the oldest first."""
        return tuple(self._live)

    @property
    def num_free(self) -> int:
        """Units free in all."""
        return self.pool.num_free * self.block_size

    @property
    def largest_request(self) -> int:
        """All of it."""
        return self.size

    def piece_size(self, size: int) -> int:
        """Returns the units of the blocks that hold `size`."""
        return num_blocks_for(size, self.block_size) * self.block_size

    def grown(self, piece: PagedPiece) -> int:
        """Returns what a full piece asks for next: one block more."""
        return piece.size + self.block_size

    def can_allocate(self, size: int) -> bool:
        """Answers whether `size` units are to be had now; where they lie does not matter."""
        whole_number("size", size)
        return self.pool.can_allocate(num_blocks_for(size, self.block_size))

    def allocate(self, size: int) -> PagedPiece:
        """Hands out as few blocks as hold `size` units.

        Raises:
            TypeError, ValueError: the size is not a whole number of at least 1.
            SequenceTooLong: it would not fit if everything were free.
            OutOfBlocks: too few blocks are free now. In each case nothing changes.
        """
        self._refuse_impossible(size)
        block_ids = self.pool.allocate(num_blocks_for(size, self.block_size))
        piece = PagedPiece(block_ids, self.block_size, size)
        self._live[piece] = None
        self._asked += size
        return piece

    def resize(self, piece: PagedPiece, size: int) -> PagedPiece:
        """Adds blocks at the end of a piece, or gives back the last ones; nothing ever moves.

        Returns:
            The same piece.

        Raises:
            ValueError, TypeError, SequenceTooLong, OutOfBlocks: as for `allocate`, or the piece is
                not handed out. It stays as it is.
        """
        self._refuse_unknown(piece)
        self._refuse_impossible(size)
        keep = num_blocks_for(size, self.block_size)
        more = keep - len(piece.block_ids)
        if more > 0:
            piece.block_ids += self.pool.allocate(more)
        else:
            self.pool.free(piece.block_ids[keep:])
            del piece.block_ids[keep:]
        self._asked += size - piece.asked
        piece.asked = size
        return piece

    def free(self, piece: PagedPiece) -> None:
        """Takes all blocks of a piece back.

        Raises:
            ValueError: the piece is not handed out: freed before, or from elsewhere. Nothing
                changes.
        """
        self._refuse_unknown(piece)
        del self._live[piece]
        self._asked -= piece.asked
        self.pool.free(piece.block_ids)

    def split(self, next_size: int) -> MemorySplit:
        """Splits the memory; all that was asked for counts as used.

        External fragmentation is 0 whatever comes next: `next_size` is only looked at so that an
        allocator can be asked the same.

        Raises:
            TypeError, ValueError: `next_size` is not a whole number of at least 1.
        """
        whole_number("next_size", next_size)
        free = self.num_free
        return MemorySplit(self.size, self._asked, 0, self.size - free - self._asked, 0, free)

    def check(self) -> None:
        """Proves that every held block is in one piece, once, and no piece is larger than needed.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.pool.check()
        held = [block_id for piece in self._live for block_id in piece.block_ids]
        assert len(held) == len(set(held)) == self.pool.num_held, "a block in two pieces, or none"
        assert all(self.pool.ref_count(block_id) == 1 for block_id in held), "a shared block"
        for piece in self._live:
            assert piece.size == self.piece_size(piece.asked), f"{piece} does not fit its request"
        assert self._asked == sum(piece.asked for piece in self._live), "requests miscounted"

    def _refuse_impossible(self, size: int) -> None:
        whole_number("size", size)
        if size > self.size:
            raise SequenceTooLong(f"asked for {size}, at most {self.size} could ever be given")

    def _refuse_unknown(self, piece: PagedPiece) -> None:
        if piece not in self._live:
            raise ValueError(f"{piece} is not handed out: freed before, or not from here")
