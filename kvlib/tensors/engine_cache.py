"""The cache of an engine: bytes in the blocks that its scheduler gives, and on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from kvlib.plan import BlockCopy
from kvlib.scheduled_ledger import ScheduledLedger
from kvlib.scheduled_memory import EngineMemory, Move
from kvlib.served import ServedRequest
from kvlib.sizes import KVShape
from kvlib.tensors.paged import PagedKVCache


class ScheduledKVCache(PagedKVCache):
    """A paged cache whose blocks a scheduler's memory owns; it carries out that memory's moves.

    Its sequences are the scheduler's requests. They are neither added nor freed here: the memory
    starts and stops them.

    Args:
        shape: layers, KV heads and head size; `model.kv_shape` of a loaded model.
        memory: the scheduler's.
        way: how to attend; see `PagedKVCache`.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        ValueError: as `PagedKVCache`. Nothing is allocated.
    """

    def __init__(
        self,
        shape: KVShape,
        memory: EngineMemory,
        *,
        way: str | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        pool = memory.pool
        super().__init__(
            shape,
            pool.num_blocks,
            memory.block_size,
            way=way,
            pool=pool,
            dtype=dtype,
            device=device,
        )
        self.ledger = ScheduledLedger(memory)
        self._host: dict[ServedRequest, tuple[Tensor, ...]] = {}
        memory.on_forget = self._forget

    @property
    def host_nbytes(self) -> int:
        """Bytes of swapped requests on the host."""
        return sum(k.nbytes + v.nbytes for k, v in self._host.values())

    def carry_out(self, moves: deque[Move]) -> Iterator[tuple[Move, Exception | None]]:
        """Copies what the moves say, in order, and takes each off the line.

        Yields:
            Each move, with the error if its copy failed; then its request must not go on.
        """
        while moves:
            move, failed = moves[0], None
            try:
                self._copy_of(move)
            except Exception as error:
                failed = error
            yield move, failed
            if moves and moves[0] is move:  # last: whoever is interrupted copies once more
                moves.popleft()
            if move.kind == "in":
                self._forget(move.job)

    def check(self) -> None:
        """Proves the ledger's invariants, and that the host has only what is swapped out.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        super().check()
        coming = {move.job for move in self.ledger.memory.moves}
        for job, (keys, _) in self._host.items():
            swapped = job in coming or len(keys) == job.num_swapped > 0
            assert swapped, "the host keeps what is not swapped out"

    def _copy_of(self, move: Move) -> None:
        sides = (self.store.keys, self.store.values)
        if move.kind == "copy":
            self._copy([BlockCopy(*move.blocks[0], move.num_tokens)])
            return
        size, tokens = self.ledger.block_size, torch.arange(move.num_tokens)
        blocks = torch.tensor([block for _, block in move.blocks], dtype=torch.int64)
        at = (slice(None), blocks[tokens // size], slice(None), tokens % size)
        if move.kind == "out":  # tokens, and not whole blocks: the host has room for so many
            self._host[move.job] = tuple(side[at].cpu() for side in sides)
        elif move.num_tokens:
            for side, kept in zip(sides, self._host[move.job], strict=True):
                side[at] = kept[-move.num_tokens :].to(self.device)
        self.counters.bytes_copied += move.num_tokens * self.store.bytes_per_token

    def _forget(self, job: ServedRequest) -> None:
        self._host.pop(job, None)
