"""One step on the device, and the cache that keeps nothing.

Every cache is used the same way, so a model need not know which one it has::

    with cache.step({seq_id: new_token_ids}) as plan:      # reserves; commits or aborts at the end
        for layer in ...:
            cache.write(layer, k, v, plan)                 # k, v [T, Hkv, D], packed
            out = cache.attend(layer, q, plan)             # q, out [T, Hq, D], packed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlib.ledger import ContiguousLedger
from kvlib.metrics import WorkCounters
from kvlib.plan import SeqId, StepPlan
from kvlib.tensors.attention import contiguous_attention


@dataclass(frozen=True)
class DevicePlan:
    """A step plan with its index arrays on the device, copied there once for all layers.

    Attributes:
        host: the plan in plain integers.
        positions: [T] int64, logical positions of the new tokens.
        slot_mapping: [T] int64, where their keys and values go.
        last_token: [S] int64, for each sequence the row of its last new token; row 0 for a
            sequence without new tokens, whose logits mean nothing.
    """

    host: StepPlan
    positions: Tensor
    slot_mapping: Tensor
    last_token: Tensor

    @classmethod
    def of(cls, host: StepPlan, device: torch.device) -> DevicePlan:
        """Copies the index arrays of a plan to a device."""
        ends = [
            end - 1 if end > start else 0
            for start, end in zip(host.query_start, host.query_start[1:], strict=False)
        ]
        arrays = (host.positions, host.slot_mapping, ends)
        return cls(host, *(torch.tensor(a, dtype=torch.int64, device=device) for a in arrays))


def not_written(layer: int) -> ValueError:
    """Returns the error of an `attend` that would read what no `write` of its step left there."""
    return ValueError(f"attend follows write in every layer: {layer} was not written")


class CacheBase:
    """What every cache shares: counted work, and a step that commits or leaves no trace.

    Attributes:
        lossy: what is attended to may differ from what was written, or be missing. Tests for equal
            tokens leave such a cache out; it meets a bound that it states itself.
    """

    lossy = False

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.counters = WorkCounters()

    @contextmanager
    def step(self, new: Mapping[SeqId, Sequence[int]]) -> Iterator[DevicePlan]:
        """Plans a step, commits it when the block ends, aborts it when block or commit raises.

        Args:
            new: the new token ids of each sequence that takes part.

        Raises:
            What `plan` of the cache raises; then nothing has changed.
        """
        plan = self.plan(new)
        try:
            yield plan
            self.commit(plan)
        except BaseException:
            self.abort(plan)
            raise

    def _attend_each(self, q: Tensor, host: StepPlan, keys_values: Sequence) -> Tensor:
        """Attends one sequence after the other; `keys_values[s]` is (k, v) [Hkv, Tk, D]."""
        if len(q) != host.num_tokens:
            raise ValueError(f"q must be [{host.num_tokens}, Hq, D], got {tuple(q.shape)}")
        out = torch.empty_like(q)
        for s, (k, v) in enumerate(keys_values):
            rows = slice(host.query_start[s], host.query_start[s + 1])
            if rows.start == rows.stop:
                continue
            out[rows] = contiguous_attention(q[rows], k, v)
            self.counters.bytes_read += k.nbytes + v.nbytes
            self.counters.kernels["sdpa_contiguous"] += 1
        return out

    def _count_pairs(self, host: StepPlan, window: int | None = None) -> None:
        for s, context_len in enumerate(host.context_lens):
            rows = slice(host.query_start[s], host.query_start[s + 1])
            new = rows.stop - rows.start
            pairs = new * context_len - new * (new - 1) // 2
            if window is not None and context_len > window:
                pairs = sum(min(position + 1, window) for position in host.positions[rows])
            self.counters.attention_pairs += pairs


class NoCache(CacheBase):
    """The do-nothing baseline: keeps no token, so every step must bring the whole text again.

    It has a cache's interface, and its `length` is always 0. A loop that forwards
    `tokens[cache.length(seq_id):]` therefore recomputes everything, and the counters show it.

    Example:
        >>> cache = NoCache()
        >>> cache.add("a"); cache.length("a"), cache.nbytes
        (0, 0)
    """

    max_seq_len: int | None = None
    nbytes = 0

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        self._fresh: tuple[Tensor, Tensor] | None = None  # one layer's keys and values
        self._fresh_of: tuple[StepPlan, int] | None = None  # of which step and layer

    def add(self, seq_id: SeqId) -> None:
        """Does nothing: there is no memory to reserve."""

    def free(self, seq_id: SeqId) -> None:
        """Does nothing: there is no memory to give back."""

    def length(self, seq_id: SeqId) -> int:
        """Returns 0: no token is ever stored."""
        return 0

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> DevicePlan:
        """Plans a step in which every sequence starts at position 0."""
        longest = max((len(tokens) for tokens in new.values()), default=0)
        ledger = ContiguousLedger(max(len(new), 1), max(longest, 1))
        for seq_id in new:
            ledger.add(seq_id)
        return DevicePlan.of(ledger.plan(new), self.device)

    def commit(self, plan: DevicePlan) -> None:
        """Drops the last layer's keys and values."""
        self._fresh = self._fresh_of = None

    abort = commit

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Holds one layer's keys and values, each [T, Hkv, D], until it is attended to."""
        self._fresh, self._fresh_of = (k, v), (plan.host, layer)

    def check(self) -> None:
        """Proves nothing: there is nothing to lose."""

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends the queries [T, Hq, D] to the keys and values just written."""
        of, written = self._fresh_of or (None, None)
        if of is not plan.host or written != layer:  # another step's keys would be attended to
            raise not_written(layer)
        if layer == 0:
            self._count_pairs(plan.host)
        bounds = zip(plan.host.query_start, plan.host.query_start[1:], strict=False)
        spans = [slice(start, end) for start, end in bounds]
        fresh = [tuple(side[span].transpose(0, 1) for side in self._fresh) for span in spans]
        return self._attend_each(q, plan.host, fresh)
