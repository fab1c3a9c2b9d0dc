"""The memory of an engine: blocks as the simulator's, and the copies that an engine must make.

A scheduler may take a request's blocks away and hand them to another in the same breath. A
simulator need not care; an engine has bytes in them. So this memory notes what is to be copied, in
order, and whoever has the bytes carries it out before anything is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kvlib.block_table import num_blocks_for
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.served import ServedRequest
from kvlib.sizes import whole_number


class Move(NamedTuple):
    """Bytes of one request that must be copied before the next step computes.

    Attributes:
        job: whose they are.
        kind: `out` to the host, `in` from there, or `copy` from block to block.
        blocks: pairs of a logical block and the block that holds it; of a `copy` the source and the
            target.
        num_tokens: how many tokens they hold.
    """

    job: ServedRequest
    kind: str
    blocks: tuple[tuple[int, int], ...]
    num_tokens: int


class EngineMemory(KVMemory):
    """Blocks of one size, shared where texts begin alike, with the moves that swaps and forks need.

    A fork starts from the blocks of another request: the whole ones are shared, and the tokens of
    the one behind them are copied into a block of its own. It finds them as long as that other one
    runs; after that it finds what the prefix index knows, as everybody does.

    Args:
        num_blocks: usable blocks.
        block_size: tokens of each.
        prefix_caching: whether requests share blocks where their texts begin alike.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1.

    Attributes:
        moves: what is to be copied, the first to be done first.
        on_forget: told of each request that `forget` is; whoever has bytes of it drops them.

    Example:
        A fork of 5 tokens in blocks of 2: two blocks shared, one token copied from block 2 to 3.

        >>> from kvlib.request import Request
        >>> memory = EngineMemory(num_blocks=4, block_size=2)
        >>> a, b = (ServedRequest(Request(i, None, 5 + i, 1), i, 0.0, 6 + i, 6 + i,
        ...                       num_tokens=5 + i) for i in (0, 1))
        >>> memory.start(a, 5); a.num_computed = 5
        >>> memory.fork(a, b, 5); memory.start(b, 6)
        >>> b.block_ids, b.num_computed, memory.moves[0].blocks, memory.moves[0].num_tokens
        ([0, 1, 3], 5, ((2, 3),), 1)
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, HashIndex if prefix_caching else None)
        self.moves: deque[Move] = deque()
        self.on_forget: Callable[[ServedRequest], object] = lambda job: None
        self._forks: dict[ServedRequest, tuple[ServedRequest, int]] = {}

    def fork(self, parent: ServedRequest, child: ServedRequest, num_tokens: int) -> None:
        """Lets `child`, which waits, start from the first tokens of `parent`, if that still runs.

        Raises:
            TypeError, ValueError: the child would have no token left to compute, or runs already;
                or not a whole number of at least 0. Nothing changes.
        """
        whole_number("num_tokens", num_tokens, least=0)
        if not num_tokens < child.num_tokens:
            raise ValueError(f"a fork of {num_tokens} tokens needs more, it has {child.num_tokens}")
        if child in self._live:
            raise ValueError(f"request {child.request.request_id} runs, only one that waits forks")
        self._forks[child] = parent, num_tokens

    def forget(self, job: ServedRequest) -> None:
        """Notes that a request has ended: it forks from nobody, and nothing of it is copied."""
        self._forks.pop(job, None)
        others = [move for move in self.moves if move.job is not job]
        self.moves.clear()
        self.moves.extend(others)
        self.on_forget(job)

    def cached_tokens(self, job: ServedRequest) -> int:
        """Returns how many leading tokens are found, those that a fork copies included."""
        parent, num_tokens = self._source(job)
        return num_tokens if parent else super().cached_tokens(job)

    def start(self, job: ServedRequest, num_tokens: int) -> None:
        """Gives a request room, and notes what must be copied into it; raises as `KVMemory`."""
        parent, num_forked = self._source(job)
        super().start(job, num_tokens)
        self._forks.pop(job, None)
        whole, rest = divmod(num_forked, self.block_size)
        if rest:  # then there is a parent
            copied = (parent.block_ids[whole], job.block_ids[whole])
            self.moves.append(Move(job, "copy", (copied,), rest))
            job.num_cached = job.num_computed = num_forked
        if job.num_swapped:
            self._note("in", job, job.num_cached // self.block_size, job.num_swapped)

    def stop(self, job: ServedRequest) -> None:
        """Takes all blocks back, and notes what goes to the host; raises as `KVMemory`."""
        if job.num_swapped:
            self._note("out", job, 0, job.num_swapped)
        super().stop(job)

    def check(self) -> None:
        """Proves what `KVMemory` proves, and that a fork waits.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        assert not self._forks.keys() & self._live, "a fork that runs still waits for its parent"

    def _note(self, kind: str, job: ServedRequest, first: int, num_tokens: int) -> None:
        end = num_blocks_for(num_tokens, self.block_size)
        blocks = tuple((i, job.block_ids[i]) for i in range(first, end))
        self.moves.append(Move(job, kind, blocks, max(0, num_tokens - first * self.block_size)))

    def _source(self, job: ServedRequest) -> tuple[ServedRequest | None, int]:
        parent, num_tokens = self._forks.get(job, (None, 0))
        # A copy may fail: bytes that are still to come back from the host are not built upon.
        there = parent in self._live and not any(move.job is parent for move in self.moves)
        if there and parent.num_computed >= num_tokens:
            return parent, num_tokens
        return None, 0

    def _found(self, job: ServedRequest) -> list[int]:
        parent, num_tokens = self._source(job)
        if parent is not None:
            return parent.block_ids[: num_tokens // self.block_size]
        return super()._found(job)
