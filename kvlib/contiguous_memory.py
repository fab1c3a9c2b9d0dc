"""Memory that running requests hold in one piece each: what serving did before blocks."""

from __future__ import annotations

from kvlib.allocator import Allocator
from kvlib.plan import OutOfBlocks
from kvlib.served import ServedRequest


class ContiguousMemory:
    """Pieces in a row: each request has one, which never grows.

    Args:
        allocator: an empty one, of contiguous pieces.

    Raises:
        ValueError: it is not empty.
    """

    grows = False

    def __init__(self, allocator: Allocator) -> None:
        if allocator.pieces:
            raise ValueError(f"the allocator is not empty: it holds {len(allocator.pieces)} pieces")
        self.allocator = allocator
        self._live: set[ServedRequest] = set()

    @property
    def size(self) -> int:
        """Tokens in all."""
        return self.allocator.size

    @property
    def most(self) -> int:
        """The largest piece there could ever be."""
        return self.allocator.largest_request

    @property
    def num_free(self) -> int:
        """Tokens free in one piece: what lies elsewhere is of no use to the next request."""
        return self.allocator.largest_hole

    @property
    def num_held(self) -> int:
        """Tokens of the pieces handed out."""
        return self.allocator.size - self.allocator.num_free

    @property
    def num_kept(self) -> int:
        """Nothing is kept."""
        return 0

    def rounded(self, num_tokens: int) -> int:
        """Returns the tokens of the piece that `num_tokens` would be given."""
        return self.allocator.piece_size(num_tokens)

    def cached_tokens(self, job: ServedRequest) -> int:
        """Nothing is ever shared."""
        return 0

    def cost(self, job: ServedRequest, num_tokens: int) -> int:
        """Returns the tokens of the piece."""
        return self.rounded(num_tokens)

    def start(self, job: ServedRequest, num_tokens: int) -> None:
        """Gives a request a piece.

        Raises:
            ValueError: the request holds one already.
            OutOfBlocks: no hole is large enough. In each case nothing changes.
        """
        if job.piece is not None:
            raise ValueError(f"request {job.request.request_id} runs already")
        job.piece = self.allocator.allocate(num_tokens)
        job.room, job.num_computed, job.num_cached = job.piece.size, 0, 0
        self._live.add(job)

    def grow(self, job: ServedRequest, num_tokens: int) -> None:
        """Refuses: a piece is as long as it is.

        Raises:
            OutOfBlocks: the request needs more than its piece. Nothing changes.
        """
        if num_tokens > job.room:
            raise OutOfBlocks(f"asked for {num_tokens} tokens in a piece of {job.room}")

    def index(self, job: ServedRequest) -> None:
        """Nothing is ever shared."""

    def stop(self, job: ServedRequest) -> None:
        """Takes the piece back.

        Raises:
            ValueError: the request holds none.
        """
        if job.piece is None:
            raise ValueError(f"request {job.request.request_id} does not run")
        self.allocator.free(job.piece)
        self._live.discard(job)
        job.piece, job.room, job.num_computed = None, 0, 0

    def stranded(self, num_tokens: int) -> int:
        """Returns the tokens of the holes that are too small for a request."""
        least = self.rounded(num_tokens)
        return sum(hole.size for hole in self.allocator.holes if hole.size < least)

    def check(self) -> None:
        """Proves what the allocator can prove, and that every piece is one running request's.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.allocator.check()
        held = sorted(job.piece for job in self._live)
        pieces = [*self.allocator.pieces]
        assert held == pieces, f"{len(self._live)} requests hold {held}, handed out are {pieces}"
        for job in self._live:
            known = 0, job.num_computed, job.room, job.piece.size
            assert sorted(known) == [*known], f"{job.order}: computed, room, piece are {known[1:]}"
