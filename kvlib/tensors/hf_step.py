"""One forward pass of a transformers model: a plan in each group's cache, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvlib.plan import SeqId
from kvlib.tensors.hf_decode import DecodeStep
from kvlib.tensors.hf_groups import Group, attend_explicitly, gathered
from kvlib.tensors.step import DevicePlan


class ForwardStep:
    """The plans of one forward pass, layer after layer, until they are committed or aborted.

    A batch of transformers is a rectangle [B, T] with pads in it, kvlib packs what is real. `B`
    counts rows of the batch, `T` its new columns, `N` the new tokens that are no pads.

    Args:
        groups: the model's layers and their caches.
        rows: the sequences, one for each row of the batch.
        tokens: by row, the ids of its new tokens, pads left out.
        real: [B, T] bool, which columns are no pads; None if all are.
        num_columns: the new columns, T.

    Raises:
        What `plan` of a cache raises. Then no cache has changed.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        rows: Sequence[SeqId],
        tokens: Sequence[Sequence[int]],
        real: Tensor | None,
        num_columns: int,
    ) -> None:
        self.num_rows, self.num_columns = len(rows), num_columns
        self.num_tokens = sum(map(len, tokens))
        self._index = None if real is None else real.flatten().nonzero().flatten()
        self._owner = {
            layer: (group, at) for group in groups for at, layer in enumerate(group.layers)
        }
        self._decode: dict[int, DecodeStep | None] = {}
        self._plans: dict[int, DevicePlan] = {}
        self._open: list[Group] = []
        self._left = sorted(self._owner)
        new = dict(zip(rows, tokens, strict=True))
        try:
            for group in groups:
                self._plans[id(group.cache)] = group.cache.plan(new)
                self._open.append(group)
        except BaseException:
            self.abort()
            raise

    @property
    def done(self) -> bool:
        """Whether every layer has written."""
        return not self._left

    def expects(self, layer: int) -> bool:
        """Answers whether this layer's turn has come."""
        return bool(self._left) and self._left[0] == layer

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Group, int, DevicePlan]:
        """Stores a layer's new keys and values [B, Hkv, T, D], without pads."""
        group, at = self._owner[layer]
        plan = self._plans[id(group.cache)]
        group.cache.write(at, self.pack(k), self.pack(v), plan)
        return group, at, plan

    def read(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores a layer's new keys and values, and returns all that it sees, [B, Hkv, Tk, D]."""
        group, at, plan = self.write(layer, k, v)
        end = plan.host.context_lens[0]
        first = group.seen_from(end, self.num_columns) if group.drops else 0
        new = list(zip(k, v, strict=True))
        keys, values = gathered(group, at, plan, range(self.num_rows), first, new)
        self._count(group, plan, at, keys.nbytes + values.nbytes, "hf_gather")
        self._left.pop(0)
        return keys, values

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None
    ) -> Tensor:
        """Stores a layer's new keys and values, and attends to all that it sees.

        Args:
            layer: the model's.
            q: [B, Hq, T, D].
            k: [B, Hkv, T, D].
            v: [B, Hkv, T, D].
            scale: factor on the scores.
            softcap: as for `attend_explicitly`.

        Returns:
            [B, T, Hq, D], zeros for pads.
        """
        group, at = self._owner[layer]
        plan, packed = self._plans[id(group.cache)], self.pack(q)
        if at == 0:
            self._decode[id(group)] = (
                DecodeStep(group, plan)
                if softcap is None and DecodeStep.takes(group, plan)
                else None
            )
        factor = scale * q.shape[3] ** 0.5
        scaled = packed if abs(factor - 1) < 1e-9 else packed * factor
        if decode := self._decode[id(group)]:
            out = decode.attend(at, scaled, self.pack(k), self.pack(v))
            del self._left[0]
            return self._unpack(out)
        self.write(layer, k, v)
        if softcap is None and _kernel_sees(group, plan):
            out = group.cache.attend(at, scaled, plan)
        else:
            out = self._explicitly(group, at, plan, packed, (k, v), scale, softcap)
        self._left.pop(0)
        return self._unpack(out)

    def commit(self) -> None:
        """Makes the new tokens part of their sequences.

        Raises:
            What `commit` of a cache raises; the plans that are still open are aborted.
        """
        try:
            while self._open:
                group = self._open[0]
                group.cache.commit(self._plans[id(group.cache)])
                self._open.pop(0)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Forgets the new tokens; a second time does nothing."""
        while self._open:
            group = self._open.pop()
            group.cache.abort(self._plans[id(group.cache)])

    def pack(self, x: Tensor) -> Tensor:
        """Turns [B, H, T, D] into [N, H, D]."""
        flat = x.squeeze(2) if self.num_columns == 1 else x.transpose(1, 2).flatten(0, 1)
        return flat if self._index is None else flat[self._index]

    def _unpack(self, out: Tensor) -> Tensor:
        if self._index is not None:
            whole = out.new_zeros(self.num_rows * self.num_columns, *out.shape[1:])
            out = whole.index_copy_(0, self._index, out)
        if self.num_columns == 1:
            return out.unsqueeze(1)
        return out.unflatten(0, (self.num_rows, self.num_columns))

    def _explicitly(
        self,
        group: Group,
        at: int,
        plan: DevicePlan,
        q: Tensor,
        new: tuple[Tensor, Tensor],
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """Attends row by row over keys that were read out, where no kernel does what is asked."""
        packed = [self.pack(side) for side in new]
        starts, out = plan.host.query_start, torch.empty_like(q)
        num_bytes = 0
        for s, end in enumerate(plan.host.context_lens):
            span = slice(starts[s], starts[s + 1])
            if span.start == span.stop:
                continue
            fresh = {s: [side[span].transpose(0, 1) for side in packed]}
            first = group.seen_from(end, span.stop - span.start)
            k, v = (side[0] for side in gathered(group, at, plan, [s], first, fresh))
            num_bytes += k.nbytes + v.nbytes
            out[span] = attend_explicitly(q[span], k, v, group.window, scale, softcap)
        self._count(group, plan, at, num_bytes, "hf_explicit")
        return out

    def _count(self, group: Group, plan: DevicePlan, at: int, num_bytes: int, way: str) -> None:
        counters = group.cache.counters
        if at == 0:
            group.cache._count_pairs(plan.host, group.window)
        # Written down once more, and read by attention.
        counters.bytes_copied += num_bytes
        counters.bytes_read += num_bytes
        counters.kernels[way] += 1


def _kernel_sees(group: Group, plan: DevicePlan) -> bool:
    """Whether the cache's own attention sees just what the layers see."""
    inside = group.window is None or max(plan.host.context_lens) <= group.window
    return inside or getattr(group.cache.ledger, "window", None) == group.window
