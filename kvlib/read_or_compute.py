"""Read it back, or compute it again? From which length, and at which bandwidth, each is faster.

Reading keys and values takes time in proportion to the tokens. Computing them takes time that is
flat at first, while the weights are what a step waits for, then linear, and at last quadratic. So
short prefixes are computed and long ones are read, and between them lies one length.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from kvlib.prefill_time import ComputeTime
from kvlib.sizes import whole_number

if TYPE_CHECKING:
    from kvlib.tier import Tier


def gain_s(
    num_tokens: int,
    tier: Tier,
    token_bytes: int,
    compute_s: ComputeTime,
    *,
    suffix_tokens: int = 1,
    num_layers: int = 1,
) -> float:
    """Returns the seconds that reading a prefix saves; below 0 it is faster to compute it.

    The rest of the prompt is computed either way: behind what was read, or together with it.

    Args:
        num_tokens: length of the prefix.
        tier: where it lies.
        token_bytes: bytes of one token's keys and values.
        compute_s: seconds of computing so many new tokens behind so many cached ones.
        suffix_tokens: tokens of the prompt behind the prefix, at least 1: a full hit leaves one.
        num_layers: equal parts in which it is read, each while the parts before it are computed
            (`kvlib.prefetch.layer_times`, far enough ahead); 1 reads everything first.
    """
    load = tier.read_s(num_tokens * token_bytes) - tier.latency_s
    rest = compute_s(suffix_tokens, num_tokens)
    lanes = max(load + rest / num_layers, load / num_layers + rest)
    return compute_s(num_tokens + suffix_tokens, 0) - tier.latency_s - lanes


def break_even_tokens(
    tier: Tier,
    token_bytes: int,
    compute_s: ComputeTime,
    *,
    suffix_tokens: int = 1,
    max_tokens: int = 131_072,
) -> int | None:
    """Returns from which length on a prefix is read faster than computed; None: never.

    It is read as a whole before the rest is computed, and then there is one such length: where a
    step waits for its bytes the prefix is computed for nothing, and beyond that the gain is the
    smaller of two convex functions that begin at or below 0. So halving finds it. A `compute_s` of
    your own has to be of that kind. Read layer by layer there may be more than one length; see
    `faster_read`.

    Args:
        tier: where the prefix lies.
        token_bytes: bytes of one token's keys and values.
        compute_s: seconds of computing so many new tokens behind so many cached ones.
        suffix_tokens: tokens of the prompt behind the prefix, at least 1.
        max_tokens: the longest prefix that is asked about.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1.

    Example:
        Behind a link of 25 GB/s, one card for Llama-3-8B; and behind a disk of half a GB/s:

        >>> from kvlib.catalog import gpu, model
        >>> from kvlib.prefill_time import Prefill
        >>> from kvlib.tier import Tier
        >>> prefill = Prefill(gpu("H100 SXM5"), model("Llama-3-8B"))
        >>> host, disk = Tier("host", 10**12, 25), Tier("disk", 10**12, 0.5)
        >>> break_even_tokens(host, prefill.token_bytes, prefill)
        432
        >>> break_even_tokens(disk, prefill.token_bytes, prefill) is None
        True
    """
    _require_sizes(token_bytes=token_bytes, suffix_tokens=suffix_tokens, max_tokens=max_tokens)

    def pays(num_tokens: int) -> bool:
        return gain_s(num_tokens, tier, token_bytes, compute_s, suffix_tokens=suffix_tokens) > 0

    return _turn(pays, 0, max_tokens) if pays(max_tokens) else None


def faster_read(
    tier: Tier,
    token_bytes: int,
    compute_s: ComputeTime,
    *,
    suffix_tokens: int = 1,
    num_layers: int = 1,
    max_tokens: int = 131_072,
) -> list[range]:
    """Returns the lengths for which reading a prefix is faster, as ranges in rising order.

    Read layer by layer, a short prefix hides behind the rest's computing even on a slow link, a
    longer one does not, and a very long one pays again for its quadratic part: two ranges. They are
    looked for at all lengths up to 64, then every 2 %, and where the answer changes, by halving.

    Args:
        tier: where the prefix lies.
        token_bytes: bytes of one token's keys and values.
        compute_s: seconds of computing so many new tokens behind so many cached ones.
        suffix_tokens: tokens of the prompt behind the prefix, at least 1.
        num_layers: parts in which it is read; see `gain_s`.
        max_tokens: the longest prefix that is asked about.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1.
    """
    _require_sizes(token_bytes=token_bytes, suffix_tokens=suffix_tokens, max_tokens=max_tokens)
    whole_number("num_layers", num_layers)
    how = {"suffix_tokens": suffix_tokens, "num_layers": num_layers}

    def pays(num_tokens: int) -> bool:
        return gain_s(num_tokens, tier, token_bytes, compute_s, **how) > 0

    edges, last = [], 0
    while last < max_tokens:
        here = min(max_tokens, max(last + 1, last * 51 // 50))
        known = bool(len(edges) % 2)  # an open range: reading pays at `last`
        if pays(here) != known:
            edges.append(_turn(lambda n, known=known: pays(n) != known, last, here))
        last = here
    edges += [max_tokens + 1] * (len(edges) % 2)
    return [range(*pair) for pair in zip(edges[::2], edges[1::2], strict=True)]


def _turn(found: Callable[[int], bool], low: int, high: int) -> int:
    """Returns the first number in `(low, high]` for which it is so, if from one on it is."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


def _require_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        whole_number(name, value)


def break_even_gb_s(
    num_tokens: int, token_bytes: int, compute_s: ComputeTime, *, suffix_tokens: int = 1
) -> float:
    """Returns the bandwidth below which computing a prefix is faster than reading it, in GB/s.

    Infinite where computing it costs nothing, because the step waits for its bytes either way.

    Source: the question is that of Qin et al., "Mooncake", FAST 2025, equation 2.
    """
    whole = compute_s(num_tokens + suffix_tokens, 0)
    saved = whole - compute_s(suffix_tokens, num_tokens)
    # Less than a float's last digits is nothing saved.
    return num_tokens * token_bytes / saved / 1e9 if saved > 1e-12 * whole else inf
