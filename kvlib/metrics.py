"""The metric sheet that every experiment of the book fills, and the counters behind it.

Equal tokens do not prove that a cache was used. Counted work does, so every cache counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import fsum

from kvlib.waste import MemorySplit


@dataclass
class WorkCounters:
    """How much work was done, in counts that do not depend on the machine.

    Attributes:
        tokens_forwarded: tokens that went through all layers of the model.
        attention_pairs: query-key pairs scored, one layer and one head counted.
        bytes_written: bytes of keys and values stored, all layers.
        bytes_read: bytes of keys and values that attention read back, all layers.
        bytes_copied: bytes moved inside the cache (growth, fork, copy-on-write).
        blocks_allocated: blocks (contiguous: rows) handed out.
        kernels: calls by name of the attention way taken.
    """

    tokens_forwarded: int = 0
    attention_pairs: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    bytes_copied: int = 0
    blocks_allocated: int = 0
    kernels: Counter[str] = field(default_factory=Counter)

    def snapshot(self) -> WorkCounters:
        """Returns a copy that no longer changes."""
        return replace(self, kernels=Counter(self.kernels))

    def since(self, earlier: WorkCounters) -> WorkCounters:
        """Returns the work done after `earlier` was taken.

        Example:
            >>> WorkCounters(tokens_forwarded=7).since(WorkCounters(tokens_forwarded=5))
            ... # doctest: +ELLIPSIS
            WorkCounters(tokens_forwarded=2, attention_pairs=0, ...)
        """
        return WorkCounters(
            **{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)}
        )


@dataclass(frozen=True)
class Metrics:
    """One row of the scoreboard. What an experiment did not measure stays `None`.

    Attributes:
        name: what was run.
        split: how the KV budget was used.
        admitted_requests: requests that got memory at once.
        ttft_s: time to first token, seconds.
        tpot_s: time per output token after the first, seconds.
        goodput_requests_per_s: requests per second that met their latency target.
        prefix_hit_rate: cached prompt tokens / prompt tokens.
        work: the work counters of the run.
        max_abs_error: largest difference to the reference output.
    """

    name: str
    split: MemorySplit | None = None
    admitted_requests: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    goodput_requests_per_s: float | None = None
    prefix_hit_rate: float | None = None
    work: WorkCounters | None = None
    max_abs_error: float | None = None

    def row(self) -> dict[str, str]:
        """Returns the sheet as text, one entry a field; what was not measured reads "not measured".

        Example:
            >>> Metrics("seven rows", admitted_requests=7).row()["admitted_requests"]
            '7'
        """
        return {f.name: _text(getattr(self, f.name)) for f in fields(self)}


def growth_exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Returns the slope of y against x on logarithmic axes, by least squares: p where y ~ x^p.

    Args:
        xs: at least two different positive values, such as text lengths.
        ys: one positive value for each, such as counted operations.

    Raises:
        ValueError: fewer than two different points, or a value that is not positive.

    Example:
        >>> round(growth_exponent([1, 2, 4], [3, 12, 48]), 9)
        2.0
    """
    if len(xs) != len(ys) or len(set(xs)) < 2 or min(*xs, *ys) <= 0:
        raise ValueError(f"a slope needs two different positive points, got {xs} and {ys}")
    log_x, log_y = ([math.log(value) for value in values] for values in (xs, ys))
    mean_x, mean_y = fsum(log_x) / len(xs), fsum(log_y) / len(ys)
    rise = fsum((x - mean_x) * (y - mean_y) for x, y in zip(log_x, log_y, strict=True))
    return rise / fsum((x - mean_x) ** 2 for x in log_x)


def _text(value: object) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, MemorySplit):
        lost = {"reservation": value.reservation, "internal": value.internal_fragmentation}
        lost["external"] = value.external_fragmentation
        parts = [f"{name} {slots / (value.total or 1):.1%}" for name, slots in lost.items()]
        return ", ".join([f"{value.utilization:.1%} used", *parts])
    if isinstance(value, WorkCounters):
        return f"{value.tokens_forwarded:,} tokens forwarded"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
