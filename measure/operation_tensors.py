"""What a cache holds, told from what lies beside it: content, canaries, and copies that fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf, nan
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvlib.plan import SeqId
from kvlib.tensors.caches import LedgerCache
from kvlib.tensors.per_head import PerHeadCache
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.sequence_sharded import SequenceShardedKVCache
from kvlib.tensors.sink_window import SinkWindowKVCache
from kvlib.tensors.top_blocks import TopBlocksKVCache
from operation_steps import Faults

CANARIES = (nan, inf, -1e30, 7.0)
NO_POSITION = 2**31 - 1


class InTensors(TorchDispatchMode):
    """Lets any operation on tensors of this thread fail, before it was done or after it.

    So memory that is not to be had, a copy that a device refuses, and an interrupt, which Python
    raises when an operation is over.
    """

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.faults.here()
        result = func(*args, **(kwargs or {}))
        self.faults.here()
        return result


class Anywhere(Faults):
    """Fails at one of many places, since an operation on a cache has a hundred."""

    def arm(self) -> None:
        """Lets one of the next places fail."""
        self._left = self.random.randint(1, self.random.choice((20, 80, 200)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No place fails in here, and none is counted."""
        left, self._left = self._left, 0
        try:
            yield
        finally:
            self._left = left


def slots(cache: LedgerCache, seq_id: SeqId) -> list[int]:
    """Returns where the tokens of a sequence are that still have a slot, in order."""
    ledger, size = cache.ledger, cache.store.block_size
    if isinstance(cache, SinkWindowKVCache):
        return ledger.held_slots(seq_id)
    first, length = 0, ledger.length(seq_id)
    if isinstance(cache, PerHeadCache):
        length = ledger.num_held(seq_id)
    elif isinstance(cache, QuantizedKVCache):
        return [cache.recent.row(seq_id) * size + i for i in range(length % size)]
    elif isinstance(cache, SequenceShardedKVCache):  # of one rank
        ledger = ledger.ledgers[0]
    if hasattr(ledger, "table"):
        blocks, first = ledger.table(seq_id), ledger._tables[seq_id].first_position
    else:
        blocks = (ledger.row(seq_id),)
    return [blocks[at // size] * size + at % size for at in range(first, length)]


def content(cache: LedgerCache, seq_id: SeqId) -> list[Tensor]:
    """Returns all numbers that a cache holds of a sequence, wherever it holds them."""
    layers = range(len(cache.store.keys))
    if isinstance(cache, QuantizedKVCache):
        return [side for layer in layers for side in cache.read(seq_id, layer)]
    if isinstance(cache, PerHeadCache):
        held = (slice(None), cache.ledger.row(seq_id), slice(None))
        held = (*held, slice(cache.ledger.num_held(seq_id)))
        beside = [cache._scores] if hasattr(cache, "_scores") else []
        sides = (cache.store.keys, cache.store.values, cache._held_positions, *beside)
        return [side[held] for side in sides]
    at = torch.tensor(slots(cache, seq_id), dtype=torch.int64)
    return [side for layer in layers for side in cache.store.read(layer, at)]


def as_bytes(numbers: list[Tensor]) -> list[bytes]:
    """Returns numbers as what can be compared bit by bit."""
    return [each.contiguous().view(torch.uint8).numpy().tobytes() for each in numbers]


def fill_free(cache: LedgerCache, value: float) -> None:
    """Fills every slot that holds no token of a live sequence, and all that is kept beside it."""
    store, live = cache.store, cache.ledger.seq_ids
    free = torch.ones(store.keys.shape[1], store.keys.shape[3], dtype=torch.bool)
    held = [slot for seq_id in live for slot in slots(cache, seq_id)]
    free.view(-1)[torch.tensor(held, dtype=torch.int64)] = False
    for side in (store.keys, store.values):
        side.permute(1, 3, 0, 2, 4)[free] = value
    if isinstance(cache, PerHeadCache):
        cache._held_positions.permute(1, 3, 0, 2)[free] = NO_POSITION
        if hasattr(cache, "_scores"):
            cache._scores.permute(1, 3, 0, 2)[free] = value
    if isinstance(cache, TopBlocksKVCache):
        blocks = {slot // store.block_size for slot in held}
        cache.extremes[:, :, [b for b in range(len(free)) if b not in blocks]] = value
    if isinstance(cache, QuantizedKVCache):
        whole = {s: cache.length(s) // store.block_size for s in live}
        coded = {block for s in live for block in cache.ledger.table(s)[: whole[s]]}
        for side in cache.codes.sides:
            side[:, [b for b in range(cache.codes.num_blocks) if b not in coded]] = 255
