"""How far a figure of a trace might be off, had other minutes or other sessions been recorded.

Neighbouring minutes are alike, and so are the requests of a session, so they are drawn together:
the bootstrap over blocks (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from random import Random

DRAWS = 400


def ratio_interval(
    parts: Sequence[tuple[float, float]], digits: int, draws: int = DRAWS
) -> dict[str, float]:
    """Returns sum / sum over all parts, with the middle 95 % of what resampled parts give.

    Args:
        parts: for each block what is counted, and what it is counted per.
        digits: decimals that are kept; 0 gives whole numbers.
        draws: as many times are all parts drawn anew, with repetition.

    Example:
        >>> ratio_interval([(2, 1), (2, 1), (2, 1)], digits=1)
        {'value': 2.0, 'low': 2.0, 'high': 2.0}
    """
    random, n = Random("resample"), len(parts)
    drawn = sorted(
        _ratio([parts[int(random.random() * n)] for _ in range(n)]) for _ in range(draws)
    )
    ends = {"low": drawn[draws // 40], "high": drawn[-1 - draws // 40]}
    # round(x, None) is a whole number.
    found = {"value": _ratio(parts), **ends}
    return {name: round(value, digits or None) for name, value in found.items()}


def _ratio(parts: Sequence[tuple[float, float]]) -> float:
    return fsum(top for top, _ in parts) / fsum(bottom for _, bottom in parts)
