"""Memory in a few fixed rows, each of which keeps what its last request left in it.

There is no index: a request is given the idle row that begins most like it, token by token, and
computes what is behind. Where few users come back to their own row, that finds all there is.
"""

from __future__ import annotations

from kvlib.content import Content
from kvlib.plan import OutOfBlocks
from kvlib.served import ServedRequest
from kvlib.sizes import whole_number


class _Row:
    """One row, and what is still in it of the request before."""

    def __init__(self) -> None:
        self.content: Content | None = None
        self.num_kept = self.stopped = 0


class SlotMemory:
    """Rows of one length; an idle one is chosen by its content, else by how long it has been idle.

    Args:
        num_rows: requests that can run at once.
        row_tokens: tokens of each row: the longest request.
        similarity: the share of a prompt that must be found for a row to be chosen for it.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or the similarity is not
            in `[0, 1]`.

    Source: the server of llama.cpp (0c1e57098): slots, `--slot-prompt-similarity` 0.1.

    Example:
        The second request goes on from the first, and finds all but what it must compute:

        >>> from kvlib.content import TokenContent
        >>> from kvlib.request import Request
        >>> memory = SlotMemory(num_rows=2, row_tokens=8)
        >>> a, b = (ServedRequest(Request(i, None, n, 1), i, 0.0, 8, 8, TokenContent(range(n), 1),
        ...                       num_tokens=n) for i, n in enumerate((3, 6)))
        >>> memory.start(a, 8); a.num_computed = 3; memory.stop(a)
        >>> memory.start(b, 8); b.num_cached
        3
    """

    grows = False

    def __init__(self, num_rows: int, row_tokens: int, similarity: float = 0.1) -> None:
        whole_number("num_rows", num_rows)
        whole_number("row_tokens", row_tokens)
        if not 0 <= similarity <= 1:
            raise ValueError(f"similarity is a share of a prompt in [0, 1], got {similarity!r}")
        self.num_rows, self.row_tokens, self.similarity = num_rows, row_tokens, similarity
        self._idle = [_Row() for _ in range(num_rows)]
        self._live: dict[ServedRequest, _Row] = {}
        self._num_stopped = 0

    @property
    def size(self) -> int:
        """Tokens of all rows."""
        return self.num_rows * self.row_tokens

    @property
    def most(self) -> int:
        """One row."""
        return self.row_tokens

    @property
    def num_free(self) -> int:
        """Tokens of the idle rows, what is kept in them included."""
        return len(self._idle) * self.row_tokens

    @property
    def num_held(self) -> int:
        """Tokens of the rows in use."""
        return self.size - self.num_free

    @property
    def num_kept(self) -> int:
        """Tokens that idle rows still hold."""
        return sum(row.num_kept for row in self._idle)

    def rounded(self, num_tokens: int) -> int:
        """Returns the tokens of a row, whatever is asked for."""
        return self.row_tokens

    def cached_tokens(self, job: ServedRequest) -> int:
        """Returns how many leading tokens the row chosen for the request holds."""
        return self._found(self._choose(job), job) if self._idle else 0

    def cost(self, job: ServedRequest, num_tokens: int) -> int:
        """Returns the tokens of a row."""
        return self.row_tokens

    def start(self, job: ServedRequest, num_tokens: int) -> None:
        """Gives a request a row; what the row holds beyond the common beginning is lost.

        Raises:
            ValueError: the request has one already.
            OutOfBlocks: no row is idle, or `num_tokens` are more than it has. In each case nothing
                changes.
        """
        if job in self._live:
            raise ValueError(f"request {job.request.request_id} runs already")
        if not self._idle or num_tokens > self.row_tokens:
            raise OutOfBlocks(
                f"asked for {num_tokens} tokens, {len(self._idle)} rows of {self.row_tokens} idle"
            )
        row = self._choose(job)
        found = self._found(row, job)
        self._idle.remove(row)
        self._live[job] = row
        job.num_cached = job.num_computed = found
        job.room = self.row_tokens

    def grow(self, job: ServedRequest, num_tokens: int) -> None:
        """Refuses: a row is as long as it is.

        Raises:
            OutOfBlocks: the request needs more than its row. Nothing changes.
        """
        if num_tokens > job.room:
            raise OutOfBlocks(f"asked for {num_tokens} tokens in a row of {job.room}")

    def index(self, job: ServedRequest) -> None:
        """Nothing is found in a row before it is idle."""

    def stop(self, job: ServedRequest) -> None:
        """Takes the row back; its tokens stay in it.

        Raises:
            ValueError: the request has none.
        """
        if job not in self._live:
            raise ValueError(f"request {job.request.request_id} does not run")
        row = self._live.pop(job)
        self._num_stopped += 1
        row.content, row.stopped = job.content, self._num_stopped
        row.num_kept = min(job.num_computed, job.content.num_blocks) if job.content else 0
        self._idle.append(row)
        job.room = job.num_computed = 0

    def stranded(self, num_tokens: int) -> int:
        """Any row serves anybody."""
        return 0

    def check(self) -> None:
        """Proves that every row is idle or in use, and holds no more than it can.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        rows = [*self._idle, *self._live.values()]
        found = len(set(rows)), len(rows)
        assert found == (self.num_rows,) * 2, f"{found} rows, each once, of {self.num_rows}"
        assert all(0 <= row.num_kept <= self.row_tokens for row in rows), "a row holds too much"
        assert all(job.room == self.row_tokens for job in self._live), "room miscounted"

    def _choose(self, job: ServedRequest) -> _Row:
        best = max(self._idle, key=lambda row: self._found(row, job))
        if self._found(best, job) > self.similarity * job.num_tokens:
            return best
        return min(self._idle, key=lambda row: row.stopped)

    def _found(self, row: _Row, job: ServedRequest) -> int:
        """Returns the common beginning; a key names all before it, so halving finds its end."""
        if row.content is None or job.content is None:
            return 0
        same, differs = 0, min(row.num_kept, job.content.num_blocks, job.num_tokens - 1) + 1
        while differs - same > 1:
            middle = (same + differs) // 2
            if row.content.key(middle - 1) == job.content.key(middle - 1):
                same = middle
            else:
                differs = middle
        return same
