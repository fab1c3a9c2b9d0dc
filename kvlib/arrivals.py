"""New arrival times for requests whose lengths are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from math import isfinite, log
from random import Random

from kvlib.request import Request


def at_rate(requests: Iterable[Request], rate: float, seed: int | None = None) -> list[Request]:
    """Returns the requests with new arrival times, the first at 0.

    `kvlib.workloads.sample` draws lengths and times together; this is for requests made otherwise.

    Args:
        requests: in order.
        rate: per second, on average.
        seed: of exponential gaps (a Poisson process); None makes all gaps equal.

    Raises:
        ValueError: the rate is not above 0.

    Example:
        >>> [r.arrival_s for r in at_rate([Request(i, None, 1, 1) for i in range(3)], rate=2)]
        [0.0, 0.5, 1.0]
    """
    if not (isfinite(rate) and rate > 0):
        raise ValueError(f"rate must be a number of requests per second above 0, got {rate!r}")
    rows, random = list(requests), Random(f"at_rate/{seed}")
    units = [1.0 if seed is None else -log(1 - random.random()) for _ in rows[1:]]
    # Whole microseconds: the last bit of a logarithm differs between hosts and must not show.
    times = accumulate((round(unit / rate * 1e6) for unit in units), initial=0)
    return [replace(row, arrival_s=us / 1e6) for row, us in zip(rows, times, strict=False)]
