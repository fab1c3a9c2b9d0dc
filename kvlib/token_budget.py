"""Which tokens of a running text stay when only so many may: rules on attention weights.

The tensor half applies the same rules to all heads at once; here they can be read, and run where
there is no torch. A *row* is the attention of one token on the tokens 0 ... itself, and adds to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from kvlib.sizes import whole_number


def require_room(budget: int, sinks: int, recent: int) -> None:
    """Refuses a budget that cannot hold what is never given up.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1 (`sinks`: 0), or the
            budget is smaller than sinks and newest tokens together.

    Example:
        >>> require_room(budget=8, sinks=4, recent=5)
        Traceback (most recent call last):
            ...
        ValueError: a budget holds its sinks and newest tokens: asked for 4 + 5, there are 8
    """
    whole_number("budget", budget)
    whole_number("recent", recent)
    whole_number("sinks", sinks, least=0)
    if sinks + recent > budget:
        raise ValueError(
            f"a budget holds its sinks and newest tokens: asked for {sinks} + {recent},"
            f" there are {budget}"
        )


def sinks_and_window(num_tokens: int, sinks: int, window: int) -> list[int]:
    """Returns the positions held after so many tokens: the first `sinks` and the last `window`.

    Source: Xiao et al. 2023, StreamingLLM.

    Example:
        >>> sinks_and_window(10, sinks=2, window=3)
        [0, 1, 7, 8, 9]
    """
    start = max(min(sinks, num_tokens), num_tokens - window)
    return [*range(min(sinks, num_tokens)), *range(start, num_tokens)]


def kept(
    scores: Mapping[int, float], num_tokens: int, budget: int, *, sinks: int = 0, recent: int = 1
) -> list[int]:
    """Returns the positions that stay: the first, the newest, and of the others the best.

    Args:
        scores: of each position held, its score; of equal ones the newer stays.
        num_tokens: how many tokens were read; the newest has position `num_tokens - 1`.
        budget: how many may stay.
        sinks: positions below this always stay.
        recent: so many of the newest always stay.

    Raises:
        TypeError, ValueError: as `require_room`.

    Example:
        >>> kept({0: 0.1, 1: 0.9, 2: 0.2, 3: 0.0}, num_tokens=4, budget=2)
        [1, 3]
    """
    require_room(budget, sinks, recent)
    always = [at for at in scores if at < sinks or at >= num_tokens - recent]
    others = sorted(scores.keys() - always, key=lambda at: (scores[at], at), reverse=True)
    return sorted([*always, *others[: budget - len(always)]])


def heavy_hitters(
    rows: Sequence[Sequence[float]], budget: int, recent: int, *, sinks: int = 0
) -> list[list[int]]:
    """Returns the positions held after each token when the most attended ones stay.

    The score of a token is all the attention it has been given. Attention on what is gone is dealt
    out among what is held, as a softmax over fewer tokens does.

    Args:
        rows: for each token its attention, as if nothing had gone.
        budget: how many tokens may stay.
        recent: so many of the newest always stay.
        sinks: so many of the first always stay.

    Raises:
        TypeError, ValueError: as `require_room`.

    Source: Zhang et al. 2023, H2O.

    Example:
        Token 1 is looked at most, so it outlives token 0 and 2:

        >>> rows = [[1], [0.1, 0.9], [0.1, 0.8, 0.1], [0.1, 0.7, 0.1, 0.1]]
        >>> heavy_hitters(rows, budget=2, recent=1)
        [[0], [0, 1], [1, 2], [1, 3]]
    """
    require_room(budget, sinks, recent)
    scores: dict[int, float] = {}
    held = []
    for token, row in enumerate(rows):
        seen = [*scores, token]
        total = fsum(row[at] for at in seen)
        scores = {at: scores.get(at, 0.0) + row[at] / total for at in seen}
        stay = kept(scores, token + 1, budget, sinks=sinks, recent=recent)
        scores = {at: scores[at] for at in stay}
        held.append(stay)
    return held


def require_odd(kernel: int) -> None:
    """Refuses a kernel without a middle.

    Raises:
        TypeError, ValueError: it is not an odd whole number of at least 1.
    """
    whole_number("kernel", kernel)
    if kernel % 2 == 0:
        raise ValueError(f"a kernel has a middle, so it is odd: got {kernel}")


def _pooled(scores: Sequence[float], kernel: int) -> list[float]:
    """Returns each score averaged with its neighbours; beyond the ends there are zeros.

    Args:
        scores: by position.
        kernel: how many are averaged, an odd number.

    Raises:
        TypeError, ValueError: the kernel is not an odd whole number of at least 1.

    Example:
        >>> _pooled([0, 0, 3, 0], kernel=3)
        [0.0, 1.0, 1.0, 1.0]
    """
    require_odd(kernel)
    half = kernel // 2
    return [fsum(scores[max(0, at - half) : at + half + 1]) / kernel for at in range(len(scores))]


def snap(
    rows: Sequence[Sequence[float]], budget: int, observe: int, *, kernel: int = 5, sinks: int = 0
) -> list[int]:
    """Returns the positions of a prompt that stay: those its last `observe` tokens look at.

    Args:
        rows: the attention of every token of the prompt; only the last `observe` are used.
        budget: how many tokens of the prompt may stay, the last `observe` among them.
        observe: how many tokens at the end of the prompt choose.
        kernel: scores are averaged over so many neighbours, so that a find keeps its surroundings.
        sinks: so many of the first always stay.

    Raises:
        TypeError, ValueError: as `require_room` and `require_odd`.

    Source: Li et al. 2024, SnapKV.

    Example:
        The last token looks back at token 1:

        >>> rows = [[1], [0, 1], [0, 0, 1], [0, 0, 0, 1], [0, 0.9, 0, 0, 0.1]]
        >>> snap(rows, budget=2, observe=1, kernel=1)
        [1, 4]
    """
    require_room(budget, sinks, observe)
    num_old = max(0, len(rows) - observe)
    votes = [fsum(row[at] for row in rows[num_old:]) for at in range(num_old)]
    scores = dict(enumerate(_pooled(votes, kernel) + [0.0] * (len(rows) - num_old)))
    return kept(scores, len(rows), budget, sinks=sinks, recent=observe)
