"""A slab pool: chunks of one size, so that any free chunk serves any request that fits at all.

No hole is ever too small; what is lost is the rest of each chunk and the remainder of the pool.

Source: Bonwick, "The slab allocator", USENIX Summer 1994.
"""

from __future__ import annotations

from kvlib.allocator import Allocator, Piece
from kvlib.sizes import whole_number


class SlabPool(Allocator):
    """Hands out equal chunks; taking and giving back are one step each.

    `size % chunk_size` units behind the last chunk are never handed out: they are free, and always
    external fragmentation.

    Args:
        size: units in all.
        chunk_size: units of a chunk; no request may be larger.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or not one chunk fits.

    Example:
        1,000 units as ten chunks of 99 leave 10. Ten requests of 5 take them all:

        >>> pool = SlabPool(1000, 99)
        >>> pieces = [pool.allocate(5) for _ in range(10)]
        >>> parts = pool.split(next_size=5)
        >>> parts.used, parts.internal_fragmentation, parts.external_fragmentation
        (50, 940, 10)
        >>> pool.allocate(5)
        Traceback (most recent call last):
        kvlib.plan.OutOfBlocks: asked for 5, 0 chunks free of 10, each of 99
    """

    def __init__(self, size: int, chunk_size: int) -> None:
        super().__init__(size)
        whole_number("chunk_size", chunk_size)
        if chunk_size > size:
            raise ValueError(f"not one chunk of {chunk_size} fits into {size}")
        self.chunk_size = chunk_size
        self._chunks = list(reversed(range(0, size - size % chunk_size, chunk_size)))

    @property
    def num_chunks(self) -> int:
        """Chunks in all."""
        return self.size // self.chunk_size

    @property
    def holes(self) -> tuple[Piece, ...]:
        """The free chunks, by address, and the remainder behind the last one."""
        free = [Piece(start, self.chunk_size) for start in sorted(self._chunks)]
        rest = self.size % self.chunk_size
        return tuple([*free, Piece(self.size - rest, rest)] if rest else free)

    @property
    def num_free(self) -> int:
        """Units free in all, the remainder among them."""
        return len(self._chunks) * self.chunk_size + self.size % self.chunk_size

    @property
    def largest_hole(self) -> int:
        """Units of a chunk while one is free, else 0: the remainder is never given."""
        return self.chunk_size if self._chunks else 0

    @property
    def largest_request(self) -> int:
        """One chunk."""
        return self.chunk_size

    def piece_size(self, size: int) -> int:
        """Returns the chunk size, whatever is asked for."""
        return self.chunk_size

    def check(self) -> None:
        """Proves what every allocator promises, and that every piece is a chunk.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        for piece in self.pieces:
            assert piece.size == self.chunk_size, f"not a chunk: {piece}"
            assert piece.start % self.chunk_size == 0, f"not where a chunk starts: {piece}"

    def _usable(self, size: int) -> int:
        return len(self._chunks) * self.chunk_size if size <= self.chunk_size else 0

    def _take(self, size: int) -> Piece | None:
        return Piece(self._chunks.pop(), self.chunk_size) if self._chunks else None

    def _give(self, piece: Piece) -> None:
        self._chunks.append(piece.start)

    def _in_place(self, piece: Piece, size: int) -> Piece | None:
        return piece

    def _shortage(self, size: int) -> str:
        return (
            f"asked for {size}, {len(self._chunks)} chunks free of {self.num_chunks}, "
            f"each of {self.chunk_size}"
        )
