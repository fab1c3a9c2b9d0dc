"""A decode step of a paged cache on the CPU: what is the same in every layer is found out once.

A model of many small layers asks thirty times a token where the new key goes and what is seen. The
answers are those of `PagedKVCache`, and so is the kernel.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from kvlib.tensors.hf_groups import Group
from kvlib.tensors.kernels import paged_cpu
from kvlib.tensors.paged import PagedKVCache, PagedPlan
from kvlib.tensors.paged_attention import KERNEL_CHUNK


class DecodeStep:
    """Writes and attends in one step of a few tokens a sequence.

    Args:
        group: layers whose cache is a `PagedKVCache` that attends by its CPU kernel.
        plan: its open plan; `DecodeStep.takes` has said yes to both.
    """

    def __init__(self, group: Group, plan: PagedPlan) -> None:
        cache, window = group.cache, group.cache.ledger.window
        size, sides = cache.ledger.block_size, (cache.store.keys, cache.store.values)
        self._counters, self._cache, self._plan = cache.counters, cache, plan
        self._layers = [side.unbind(0) for side in sides]
        self._where = plan.slot_mapping // size, plan.slot_mapping % size
        self._one = None
        if plan.host.num_tokens == 1:  # its place in all layers is a view
            block, at = divmod(plan.host.slot_mapping[0], size)
            self._one = [side[:, block : block + 1, :, at].unbind(0) for side in sides]
        self._table, self._rows = plan.context.block_table, plan.context.rows_of(window)
        num_layers = len(cache.store.keys)
        seen = plan.context.num_seen(window)
        self._read = cache.store.bytes_per_token // num_layers * seen
        cache._count_pairs(plan.host, window)

    @staticmethod
    def takes(group: Group, plan: PagedPlan) -> bool:
        """Answers whether cache and step are of this kind."""
        cache, starts = group.cache, plan.host.query_start
        if type(cache) is not PagedKVCache or cache.way != "cpu":
            return False
        longest = max(b - a for a, b in pairwise(starts))
        return longest <= KERNEL_CHUNK and cache.ledger.window == group.window

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores k and v [N, Hkv, D] of a layer of the cache, returns attention of q [N, Hq, D]."""
        keys, values = (side[layer] for side in self._layers)
        if not k.dtype == v.dtype == keys.dtype or k.shape[1:] != (keys.shape[1], keys.shape[3]):
            raise ValueError(
                f"the cache holds {tuple(keys.shape[1::2])} {keys.dtype} a token, got"
                f" {tuple(k.shape[1:])} {k.dtype} and {v.dtype}"
            )
        if self._one:
            self._one[0][layer].copy_(k)
            self._one[1][layer].copy_(v)
        else:
            block, offset = self._where
            keys[block, :, offset], values[block, :, offset] = k, v
        self._cache.note_written(self._plan, layer)
        out, _ = paged_cpu.attend_rows(q.contiguous(), keys, values, self._table, self._rows)
        self._counters.bytes_written += k.nbytes + v.nbytes
        self._counters.bytes_read += self._read
        self._counters.kernels["cpu"] += 1
        return out
