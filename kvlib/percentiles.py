"""Percentiles of times that were all kept, and how far a sample of them may be off.

`kvlib.histogram` answers for a stream, within a precision. Here every value is at hand, the answers
are exact, and each comes with the interval in which the true one may lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, exp, inf, isnan, lgamma, log

from kvlib.sizes import whole_number


def percentile(values: Sequence[float], p: float) -> float:
    """Returns the least value that `p` percent of the values do not exceed: always one of them.

    Args:
        values: at least one; infinity stands for what never came.
        p: 0 to 100, as in `Histogram.percentile`.

    Raises:
        ValueError: there are no values, one is no number, or `p` is out of its range.

    Example:
        >>> percentile([3, 1, 2, 4], 50), percentile([3, 1, 2, 4], 51)
        (2, 3)
    """
    if not 0 <= p <= 100:
        raise ValueError(f"a percentile is within [0, 100], got {p}")
    if not values:
        raise ValueError("a percentile needs at least 1 value, got 0")
    return _ordered(values)[max(ceil(p * len(values) / 100), 1) - 1]


def percentile_interval(
    values: Sequence[float], p: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Returns two values between which the true percentile lies, with a given confidence.

    It assumes nothing of how the values are spread, and one thing of where they come from: that
    they are **independent**. Requests of one run wait in the same line and are not. Take one value
    from each of several runs with different seeds.

    Args:
        values: independent, at least 0.
        p: within (0, 100).
        confidence: within (0, 1).

    Returns:
        The ends; 0 or infinity where the values are too few to bound it on that side.

    Raises:
        ValueError: there are no values, one is no number, or a number is out of its range.

    Source: the order statistics of a sample, e.g. David and Nagaraja, "Order Statistics", ch. 7.

    Example:
        The true median of six runs lies between the least and the greatest, 31 times in 32:

        >>> percentile_interval([5, 3, 4, 8, 6, 7], 50)
        (3, 8)
    """
    low, high = _interval_ranks(len(values), p, confidence)
    ends = [0.0, *_ordered(values), inf]
    return ends[low], ends[high]


@cache
def _interval_ranks(n: int, p: float, confidence: float = 0.95) -> tuple[int, int]:
    """Returns which of `n` sorted values, from 1, bound the true percentile.

    Of `n` values `B` lie below it, and `B` is binomial. The ends cut off at most half of what the
    confidence leaves on either side: `P(B < low)` and `P(B >= high)`.

    Returns:
        The ranks; 0 and `n + 1` mean that no value bounds it.

    Raises:
        TypeError, ValueError: `n` is not a whole number of at least 1, or a number is out of range.

    Example:
        >>> _interval_ranks(1000, 99), _interval_ranks(100, 99)
        ((983, 997), (97, 101))
    """
    whole_number("n", n)
    q, tail = _share(p), _tail(confidence)
    below, low = 0.0, 0
    while low < n and below + (mass := _binomial(n, low, q)) <= tail:
        below += mass
        low += 1
    above, high = 0.0, n + 1
    while high > 1 and above + (mass := _binomial(n, high - 1, q)) <= tail:
        above += mass
        high -= 1
    return low, high


def requests_needed(p: float, confidence: float = 0.95) -> int:
    """Returns the fewest independent values that bound a percentile from both sides.

    Raises:
        ValueError: a number is out of its range.

    Example:
        Half of 5 % must be left when all values lie below: `0.99 ** 368 < 0.025`.

        >>> requests_needed(50), requests_needed(99), requests_needed(99.9)
        (6, 368, 3688)
    """
    q = _share(p)
    return ceil(log(_tail(confidence)) / log(max(q, 1 - q)))


def _ordered(values: Sequence[float]) -> list[float]:
    if lost := sum(map(isnan, values)):  # it compares with nothing, so no order would be one
        raise ValueError(f"a percentile is of numbers, {lost} of {len(values)} values are none")
    return sorted(values)


def _share(p: float) -> float:
    if not 0 < p < 100:
        raise ValueError(f"an interval is for percentiles within (0, 100), got {p}")
    return p / 100


def _tail(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is within (0, 1), got {confidence}")
    return (1 - confidence) / 2


def _binomial(n: int, k: int, q: float) -> float:
    """The chance of `k` of `n`, by logarithms: powers of q alone would underflow."""
    ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return exp(ways + k * log(q) + (n - k) * log(1 - q))
