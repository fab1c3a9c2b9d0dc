"""The largest step an engine allows, run once to see how much memory it takes.

What a model holds while it runs follows from its code, not from its shape. So an engine measures
it before it gives the rest of its memory to the cache.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvlib.block_table import num_blocks_for
from kvlib.sizes import whole_number
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of tensors made while it is entered, and the most that were alive at once.

    It works on every device, on meta too, where tensors have sizes and no bytes. What a kernel
    takes and gives back inside one call is not seen; `torch.cuda.max_memory_allocated` sees it.

    Attributes:
        live: bytes alive now.
        peak: the most there were.

    Example:
        >>> with PeakBytes() as memory:
        ...     a = torch.ones(10)
        ...     b = a[:5] + 1  # a view takes nothing
        ...     del a
        ...     c = torch.ones(3)
        >>> memory.live, memory.peak
        (32, 60)
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operation and notes the storages it has made."""
        kwargs = kwargs or {}
        given = {_storage(leaf)._cdata for leaf in _tensors((args, kwargs))}
        made = func(*args, **kwargs)
        for leaf in _tensors(made):
            storage = _storage(leaf)
            if storage._cdata not in given | self._known:
                self._add(storage)
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


@dataclass(frozen=True)
class Profile:
    """What a profile run found.

    Attributes:
        weight_bytes: of all parameters, each storage once.
        activation_bytes: the most that one step held beside weights and cache.
    """

    weight_bytes: int
    activation_bytes: int


def profile_run(model: Llama, max_batched_tokens: int, max_num_seqs: int = 1) -> Profile:
    """Runs the largest step on a cache of its own, which is not counted, and measures it.

    Args:
        model: on any device; on meta nothing is computed.
        max_batched_tokens: T, the most tokens of one step.
        max_num_seqs: S, the sequences they are split among, as evenly as can be.

    Raises:
        TypeError, ValueError: not whole numbers of at least 1, or more sequences than tokens.

    Source: vLLM, `determine_available_memory` in `v1/worker/gpu_worker.py`.
    """
    whole_number("max_batched_tokens", max_batched_tokens)
    whole_number("max_num_seqs", max_num_seqs)
    if max_num_seqs > max_batched_tokens:
        raise ValueError(f"{max_num_seqs} sequences need as many tokens, got {max_batched_tokens}")
    size, longer = divmod(max_batched_tokens, max_num_seqs)
    new = {i: [0] * (size + (i < longer)) for i in range(max_num_seqs)}
    blocks = sum(num_blocks_for(len(tokens), 16) for tokens in new.values())
    cache = PagedKVCache(model.kv_shape, blocks, 16, dtype=model.dtype, device=model.device)
    tokens = torch.zeros(max_batched_tokens, dtype=torch.int64, device=model.device)
    for seq_id in new:
        cache.add(seq_id)
    with cache.step(new) as plan, PeakBytes() as memory:
        model(tokens, cache, plan)
    weights = {_storage(p)._cdata: _storage(p).nbytes() for p in model.parameters()}
    return Profile(sum(weights.values()), memory.peak)
