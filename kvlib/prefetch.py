"""What is fetched of a prefix, and how early: whole chunks, and layers ahead of their use."""

from __future__ import annotations

from math import ceil, isfinite
from typing import NamedTuple

from kvlib.sizes import whole_number


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
