"""Read it back, or compute it again? When each is faster, how much is read, and how early.

Reading keys and values takes time in proportion to the tokens. Computing them takes time that is
flat at first, while the weights are what a step waits for, then linear, and at last quadratic. So
short prefixes are computed and long ones are read, and between them lies one length.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

from kvlib.catalog import GPU, ModelShape
from kvlib.roofline import StepCost, attention_flops, step_seconds
from kvlib.sizes import whole_number

if TYPE_CHECKING:
    from kvlib.tiers import Tier

ComputeTime = Callable[[int, int], float]


class Prefill:
    """The least time of computing tokens whose predecessors are, or are not, cached.

    Args:
        gpu: with its bandwidth and peak.
        model: whose layers all attend to everything; not MLA.
        weight_dtype: what the weights are stored in.
        kv_dtype: what the cache stores.
        num_gpus: cards that share bytes and operations evenly, as if nothing were exchanged.
        efficiency: the share of the roofline that is reached, above 0 and at most 1.

    Attributes:
        token_bytes: bytes of one token's keys and values.
        num_layers: layers of the model.

    Raises:
        TypeError, ValueError: a size, a dtype or the efficiency is refused.

    Example:
        The last of 8,192 tokens waits for the weights and the cache, all of them for arithmetic:

        >>> from kvlib.catalog import gpu, model
        >>> prefill = Prefill(gpu("H100 SXM5"), model("Llama-3-8B"))
        >>> [round(1000 * prefill(new, 8192 - new), 1) for new in (1, 8192)]
        [5.1, 150.8]
    """

    def __init__(
        self,
        gpu: GPU,
        model: ModelShape,
        *,
        weight_dtype: str = "bfloat16",
        kv_dtype: str = "bfloat16",
        num_gpus: int = 1,
        efficiency: float = 1.0,
    ) -> None:
        whole_number("num_gpus", num_gpus)
        if not 0 < efficiency <= 1:
            raise ValueError(f"efficiency must be above 0 and at most 1, got {efficiency}")
        self._gpu, self._model, self._kv_dtype = gpu, model, kv_dtype
        self._speed = num_gpus * efficiency
        self._weight_bytes = model.weight_bytes(weight_dtype)
        self._pair_flops = attention_flops(model, 1)
        self.token_bytes = model.kv.bytes_per_token(kv_dtype)
        self.num_layers = model.kv.num_layers

    def __call__(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """Returns the seconds of one step with `new_tokens` behind `cached_tokens`."""
        whole_number("new_tokens", new_tokens)
        whole_number("cached_tokens", cached_tokens, least=0)
        total = cached_tokens + new_tokens
        pairs = total * (total + 1) // 2 - cached_tokens * (cached_tokens + 1) // 2
        active = self._model.active_params or self._model.params
        flops = new_tokens * 2 * active + pairs * self._pair_flops
        kv_bytes = self._model.kv_bytes(total, self._kv_dtype, beyond_context=True)
        return step_seconds(self._gpu, StepCost(self._weight_bytes, kv_bytes, flops)) / self._speed


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
            (`layer_times`, far enough ahead); 1 reads everything first.
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
        >>> from kvlib.tiers import Tier
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


class Fetch(NamedTuple):
    """What is fetched of a prefix in whole chunks; all in tokens.

    Attributes:
        hit: what the outer tier has of it, in whole chunks from the first token on.
        fetch: what crosses the link.
        overlap: of that, what the device has already.
        new: of that, what the device must make room for.
    """

    hit: int
    fetch: int
    overlap: int
    new: int


def fetch_plan(shared: int, on_device: int, *, chunk_tokens: int, block_size: int = 1) -> Fetch:
    """Returns what to fetch from a tier that stores larger chunks than the device's blocks.

    Chunks that the device holds altogether are skipped. A chunk it holds in part is fetched whole,
    so what crosses the link and what needs room differ by the overlap.

    Args:
        shared: tokens that the prompt shares with what was stored, from the first on.
        on_device: of these, tokens in blocks of the device.
        chunk_tokens: tokens per chunk.
        block_size: tokens per block of the device.

    Raises:
        TypeError, ValueError: a number is refused, chunks are not whole blocks, or the device holds
            a part of a block.

    Example:
        Chunks of 8, 27 tokens shared, 16 of them on the device: the outer tier has 24.

        >>> fetch_plan(27, 16, chunk_tokens=8)
        Fetch(hit=24, fetch=8, overlap=0, new=8)
    """
    for name, value in (("chunk_tokens", chunk_tokens), ("block_size", block_size)):
        whole_number(name, value)
    for name, value in (("shared", shared), ("on_device", on_device)):
        whole_number(name, value, least=0)
    if chunk_tokens % block_size or on_device % block_size:
        got = f"chunks of {chunk_tokens} and {on_device} tokens on the device"
        raise ValueError(f"both are whole blocks of {block_size}, got {got}")
    hit = shared - shared % chunk_tokens
    if hit <= on_device:
        return Fetch(hit, 0, 0, 0)
    first = on_device - on_device % chunk_tokens
    return Fetch(hit, hit - first, on_device - first, hit - on_device)


class LayerTimes(NamedTuple):
    """When a layer's keys and values are on the link and there, and when it is computed."""

    load_start: float
    load_end: float
    arrived: float
    compute_start: float
    compute_end: float


def layer_times(
    num_layers: int, load_s: float, compute_s: float, *, distance: int, latency_s: float = 0.0
) -> list[LayerTimes]:
    """Returns the timeline of a step whose layers are loaded while others are computed.

    A layer's load is asked for when the layer `distance` before it starts to compute, the first
    ones at once; with 0 it is asked for when it is needed. Loads follow each other on one link, and
    each arrives `latency_s` after it has left.

    Args:
        num_layers: layers of the model.
        load_s: seconds that one layer's load keeps the link busy.
        compute_s: seconds of one layer.
        distance: how many layers ahead.
        latency_s: from the end of a load to its arrival.

    Raises:
        TypeError, ValueError: a number is refused.

    Source: layer by layer as in Gao et al., "CachedAttention", ATC 2024.

    Example:
        >>> [round(layer_times(4, 1, 2, distance=d)[-1].compute_end) for d in (0, 1)]
        [12, 9]
    """
    _require_times(load_s, compute_s, latency_s)
    whole_number("num_layers", num_layers)
    whole_number("distance", distance, least=0)
    times: list[LayerTimes] = []
    link_free = done = 0.0
    for layer in range(num_layers):
        asked = done
        if distance:
            asked = times[layer - distance].compute_start if layer >= distance else 0.0
        start = max(asked, link_free)
        link_free = start + load_s
        begin = max(done, link_free + latency_s)
        done = begin + compute_s
        times.append(LayerTimes(start, link_free, link_free + latency_s, begin, done))
    return times


def prefetch_distance(load_s: float, compute_s: float, latency_s: float = 0.0) -> int:
    """Returns how many layers ahead is early enough: a larger distance ends no sooner.

    Where computing a layer takes longer than loading it, only the first layer is then waited for;
    otherwise the link is busy without a pause, and no distance hides it.

    Raises:
        ValueError: a time is negative or no number, or loading and computing take none.

    Example:
        >>> prefetch_distance(load_s=1, compute_s=2), prefetch_distance(1, 2, latency_s=4)
        (1, 3)
    """
    _require_times(load_s, compute_s, latency_s)
    if not max(load_s, compute_s):
        raise ValueError("a layer takes time to load or to compute, got 0 for both")
    return max(1, ceil(round((load_s + latency_s) / max(load_s, compute_s), 9)))


def _require_times(*times: float) -> None:
    if not all(isfinite(each) and each >= 0 for each in times):
        raise ValueError(f"times are at least 0, got {', '.join(map(str, times))}")
