"""Three bounds that decide most claims of speed: of a part, for a part, and within a latency."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf


def whole_gain(parts: Mapping[str, float], faster: Mapping[str, float]) -> float:
    """Returns how many times as fast a whole is when some of its parts are.

    Args:
        parts: seconds, bytes or any other cost of each part, on one scale.
        faster: how many times as fast a part becomes; `math.inf` for a part that is gone, and a
            part that is not named stays.

    Raises:
        KeyError: a part is made faster that is not there.
        ValueError: a cost is negative or all are 0, or a factor is not above 0.

    This is Amdahl's law.

    Example:
        A quarter of a step made endlessly fast:

        >>> round(whole_gain({"weights": 3.0, "cache": 1.0}, {"cache": inf}), 3)
        1.333
    """
    if unknown := set(faster) - set(parts):
        raise KeyError(f"{sorted(unknown)} are not among the parts {sorted(parts)}")
    before = sum(parts.values())
    if min(parts.values(), default=0.0) < 0 or before <= 0:
        raise ValueError(f"parts cost at least 0, and one of them more, got {dict(parts)}")
    if any(not factor > 0 for factor in faster.values()):
        raise ValueError(f"a factor is above 0, got {dict(faster)}")
    after = sum(cost / faster.get(name, 1.0) for name, cost in parts.items())
    return before / after if after else inf


def least_share(gain: float) -> float:
    """Returns the least share of a whole that a part must have, for the whole to gain so much.

    However fast the part becomes, what is left takes `1 / gain` of the time at least.

    Raises:
        ValueError: the gain is below 1.

    Example:
        >>> round(least_share(4.0), 2)
        0.75
    """
    if not gain >= 1:
        raise ValueError(f"a gain is at least 1, got {gain!r}")
    return 1 - 1 / gain


def highest_rate(curve: Iterable[tuple[float, float]], most: float) -> float | None:
    """Returns the highest rate at which, and below which, a latency is kept; None for none.

    Args:
        curve: pairs of rate and latency, in any order.
        most: the latency that is to be kept.

    Example:
        At a rate of 3 the latency is kept again, by chance: it was not at 2.

        >>> highest_rate([(1, 0.2), (2, 0.9), (3, 0.4)], most=0.5)
        1
    """
    kept = None
    for rate, latency in sorted(curve):
        if latency > most:
            break
        kept = rate
    return kept
