"""Made-up request lengths with a stated mean and spread, for workloads nobody has published."""

from __future__ import annotations

from math import exp, log
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from kvlib.request import Request, Workload
from kvlib.sizes import whole_number


class Spread(NamedTuple):
    """A lognormal distribution of lengths.

    Attributes:
        mean: tokens, before what is too long is drawn again.
        sigma: standard deviation of the length's logarithm; `exp(sigma)` is a factor.
    """

    mean: float
    sigma: float


def lognormal(
    n: int, seed: int, prompt: Spread, output: Spread, max_seq_len: int | None = None
) -> Workload:
    """Draws requests whose prompt and output lengths are lognormal and independent.

    A pair longer than `max_seq_len` together is drawn again, so that the means come out below
    the stated ones. The requests have no arrival times.

    Raises:
        TypeError: `n` or `max_seq_len` is not a whole number.
        ValueError: one of them or a mean is not positive, or a sigma is negative.

    Example:
        >>> rows = lognormal(2, seed=0, prompt=Spread(100, 0.0), output=Spread(20, 0.0))
        >>> [(r.prompt_tokens, r.output_tokens) for r in rows]
        [(100, 20), (100, 20)]
    """
    whole_number("n", n)
    if max_seq_len is not None:
        whole_number("max_seq_len", max_seq_len, least=2)
    for spread in (prompt, output):
        if not (spread.mean > 0 and spread.sigma >= 0):
            raise ValueError(f"a mean is above 0 and a sigma at least 0, got {spread}")
    random, requests = Random(f"lognormal/{seed}"), []
    while len(requests) < n:
        lengths = _draw(random, prompt), _draw(random, output)
        if max_seq_len is None or sum(lengths) <= max_seq_len:
            requests.append(Request(len(requests), None, *lengths))
    return Workload(
        name=f"lognormal (n={n}, seed={seed})",
        description=(
            f"made up: {n:,} requests, prompts {prompt.mean:g} tokens on average (sigma "
            f"{prompt.sigma:g}), outputs {output.mean:g} (sigma {output.sigma:g})"
        ),
        source="",
        requests=tuple(requests),
    )


def _draw(random: Random, spread: Spread) -> int:
    # `random()` alone is promised never to change; 0 has no place on the normal curve.
    z = NormalDist().inv_cdf(random.random() or 0.5)
    return max(1, round(exp(log(spread.mean) - spread.sigma**2 / 2 + spread.sigma * z)))
