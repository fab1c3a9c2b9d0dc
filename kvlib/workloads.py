"""Requests to serve: seeded samples of public traces, made-up conversations, whole traces.

A seed draws the same workload on every host: `Random.random()` is the only source of choices, the
one method whose sequence Python promises never to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import fsum, isfinite, log
from pathlib import Path
from random import Random
from typing import Literal

from kvlib.conversations import conversations
from kvlib.lognormal import Spread, lognormal
from kvlib.request import Request, Workload
from kvlib.sizes import whole_number
from kvlib.trace_files import read
from kvlib.traces import Trace, cache_folder, find, trace, trace_of_file, traces

__all__ = ["Request", "Spread", "Workload", "conversations", "load", "lognormal", "sample"]


def sample(
    name: str,
    n: int,
    seed: int,
    gaps: Literal["poisson", "trace"] = "poisson",
    rate: float | None = None,
) -> Workload:
    """Draws a seeded sample from a trace's length quantiles, with no download.

    The draw is stratified: each of `n` equal slices of a distribution gives one length, in random
    order; slices in the top 2 per mille, and the topmost always, give their middle. So the mean
    prompt and output lie within 2 % of the trace's from `n = 1000` on (6 % at 100), where plain
    draws of azure-code's long-tailed outputs miss by 7 % one time in three. Prompt and output are
    drawn independently of each other, so arxiv's limit of 4,096 tokens together is passed by one
    request in 16, and ragpulse's rank correlation of 0.42 between the two is lost. Another `n`
    draws afresh; `gaps` and `rate` change no length. Sessions and pieces are not drawn.

    Args:
        name: a trace, one of `kvlib.traces.traces()`.
        n: requests.
        seed: the same seed gives the same sample.
        gaps: `poisson` draws independent exponential gaps. `trace` draws them from the trace's own
            gap quantiles, stratified and scaled to `rate`; independent too, so runs of short gaps
            are not kept.
        rate: requests per second; the trace's own if not given. A trace without times has no rate,
            nor has ragpulse, a selection out of a week's requests: `arrival_s` is `None` unless a
            rate is given.

    Raises:
        TypeError: `n` is not an `int`.
        ValueError: no such trace, `n` or `rate` is not positive, or the trace has no gap quantiles.

    Example:
        >>> chat = sample("azure-conv", 3, seed=0)
        >>> chat.name, len(chat), chat.requests[0].arrival_s
        ('azure-conv sample (n=3, seed=0)', 3, 0.0)
    """
    whole_number("n", n)
    known = trace(name)
    streams = {what: Random(f"{name}/{seed}/{what}") for what in ("prompt", "output", "gap")}
    prompts = _stratified(known.prompt_tokens_permille, n, streams["prompt"])
    outputs = _stratified(known.output_tokens_permille, n, streams["output"])
    times, how = _arrivals(known, n, gaps, rate, streams["gap"])
    return Workload(
        name=f"{name} sample (n={n}, seed={seed})",
        description=(
            f"a seeded sample, not the trace: {n:,} requests from the length quantiles of {name} "
            f"({known.about}), prompt and output drawn independently; {how}"
        ),
        source=f"{known.source}; reduced to 1001 quantiles per column",
        requests=tuple(
            Request(i, arrival_s, max(1, round(prompt)), max(1, round(output)))
            for i, (arrival_s, prompt, output) in enumerate(
                zip(times, prompts, outputs, strict=True)
            )
        ),
    )


def _stratified(permille: Sequence[int], n: int, random: Random) -> list[float]:
    middles = sorted(((i + 0.5) / n for i in range(n)), key=lambda _: random.random())
    # Free to move within two slices, a long tail could alone shift a mean of 1,000 values by 2 %.
    free_below = min(0.998, 1 - 1 / n) if n else 0
    shifts = ((random.random() - 0.5) / n if u < free_below else 0.0 for u in middles)
    return [_quantile(permille, u + shift) for u, shift in zip(middles, shifts, strict=True)]


def _quantile(permille: Sequence[int], u: float) -> float:
    below = min(int(u * 1000), 999)
    return permille[below] + (permille[below + 1] - permille[below]) * (u * 1000 - below)


def _arrivals(
    known: Trace, n: int, gaps: str, rate: float | None, random: Random
) -> tuple[list[float | None], str]:
    _check_arrivals(known, gaps, rate)
    if rate is None and known.mean_gap_ms is None:
        return [None] * n, "no arrival times, the trace has no rate of its own"
    rate = rate or 1000 / known.mean_gap_ms
    if gaps == "trace":
        permille = known.gap_ms_permille
        # Lines between quantiles lie above a long tail. Dividing by their own mean undoes that and
        # leaves the pace to `rate` alone.
        mean_ms = fsum(permille[:-1] + permille[1:]) / 2000
        units = [gap_ms / mean_ms for gap_ms in _stratified(permille, n - 1, random)]
        how = "gaps from the trace's own quantiles, independent of each other, scaled to"
    else:
        units = [-log(1 - random.random()) for _ in range(n - 1)]
        how = "Poisson arrivals at"
    # Whole microseconds: the last bit of a logarithm differs between hosts and must not show.
    times_us = accumulate((round(unit / rate * 1e6) for unit in units), initial=0)
    return [time_us / 1e6 for time_us in times_us], f"{how} {rate:.4g} requests/s"


def _check_arrivals(known: Trace, gaps: str, rate: float | None) -> None:
    if gaps not in ("poisson", "trace"):
        raise ValueError(f"gaps are 'poisson' or 'trace', got {gaps!r}")
    if rate is not None and not (isfinite(rate) and rate > 0):
        raise ValueError(f"rate must be a positive number of requests per second, got {rate!r}")
    if gaps == "trace" and known.gap_ms_permille is None:
        have = [name for name in traces() if trace(name).gap_ms_permille]
        raise ValueError(f"{known.name} has no gap quantiles; {' and '.join(have)} have them")


def load(name_or_path: str | Path, folders: Iterable[Path] = ()) -> Workload:
    """Reads a whole trace from its file, the publisher's or the compact one: equal requests.

    Args:
        name_or_path: a trace's name, looked for in `$KVLIB_TRACES`, `folders` and the user's
            cache; or a file (anything with a dot or a slash in it).
        folders: further places to look for a name.

    Raises:
        FileNotFoundError: no such file, or the trace is nowhere on this machine; the message says
            how to get it.
        ValueError: no such trace, or the file is malformed (with line and reason).
    """
    if isinstance(name_or_path, Path) or set(name_or_path) & set("./\\"):
        path = Path(name_or_path)
        known = trace_of_file(path.name)
    else:
        known = trace(name_or_path)
        found = find(name_or_path, folders)
        if found is None:
            raise FileNotFoundError(_where_to_get(known))
        path = found
    requests = tuple(read(path))
    name = known.name if known else path.name
    what = f"the trace {name} ({known.about})" if known else "a file kvlib knows nothing more about"
    return Workload(
        name=name,
        description=f"{what}, all {len(requests):,} requests read from {path.name}",
        source=known.source if known else "",
        requests=requests,
    )


def _where_to_get(known: Trace) -> str:
    fetch = f"python -m kvlib.fetch {known.name} downloads it; " if known.sha256 else ""
    return (
        f"the trace {known.name} is neither in $KVLIB_TRACES nor in {cache_folder()}; {fetch}"
        f"workloads.sample({known.name!r}, ...) needs no file"
    )
