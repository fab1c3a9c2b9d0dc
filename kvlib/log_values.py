"""What a value is called on a log's line, what it is called here, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

_UNITS = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}


class Size(NamedTuple):
    """An amount of memory as it was printed; engines do not agree on what GB means."""

    value: float
    unit: str

    def nbytes(self, meant: str | None = None) -> int:
        """Returns the bytes, rounded; `meant` is the unit that is meant where another is printed.

        Example:
            >>> Size(8.0, "GB").nbytes(), Size(8.0, "GB").nbytes("GiB")
            (8000000000, 8589934592)
        """
        return round(self.value * _UNITS[meant or self.unit])


def _number(text: str) -> float:
    value = float(text.replace(",", ""))
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"{text!r} is not a number of at least 0")
    return value


def _count(text: str) -> int:
    value = _number(text.removesuffix("reqs").removesuffix("tokens").strip())
    if value != int(value):
        raise ValueError(f"{text!r} is no whole number")
    return int(value)


def _share(text: str) -> float:
    value = round(_number(text.removesuffix("%")) / (100 if text.endswith("%") else 1), 6)
    if value > 1:
        raise ValueError(f"{text!r} is more than the whole")
    return value


def _speed(text: str) -> float:
    return _number(text.removesuffix("tokens/s").strip())


def _size(text: str) -> Size:
    value, unit = text.split()
    if unit not in _UNITS:
        raise ValueError(f"{unit!r} is none of the units {list(_UNITS)}")
    return Size(_number(value), unit)


def _ratio(text: str) -> tuple[float, float]:
    before, after = text.split(" -> ")
    return _number(before), _number(after)


Reader = Callable[[str], Any]

# By the name on a line, in small letters: the name here, and who reads it. A reader raises
# ValueError for a value that makes no sense.
FIELDS: dict[str, tuple[str, Reader]] = {
    "# gpu blocks": ("blocks", _count),
    "# cuda blocks": ("blocks", _count),
    "# cpu blocks": ("host_blocks", _count),
    "gpu kv cache size": ("tokens", _count),
    "available kv cache memory": ("memory", _size),
    "concurrency": ("concurrency", lambda text: _number(text.removesuffix("x"))),
    "max_len": ("max_len", _count),
    "avg prompt throughput": ("prompt_tokens_s", _speed),
    "avg generation throughput": ("output_tokens_s", _speed),
    "running": ("running", _count),
    "waiting": ("waiting", _count),
    "pending": ("waiting", _count),
    "deferred": ("deferred", _count),
    "preemptions": ("preempted", _count),
    "swapped": ("swapped", _count),
    "gpu kv cache usage": ("used_share", _share),
    "cpu kv cache usage": ("host_share", _share),
    "prefix cache hit rate": ("hit_rate", _share),
    "external prefix cache hit rate": ("external_hit_rate", _share),
    "gpu": ("hit_rate", _share),
    "cpu": ("host_hit_rate", _share),
    "took": ("memory", _size),
    "mem usage": ("memory", _size),
    "request": ("request", str),
    "mode": ("mode", str),
    "total": ("total", _count),
    "#running-req": ("running", _count),
    "#queue-req": ("waiting", _count),
    "#token": ("used_tokens", _count),
    "#full token": ("used_tokens", _count),
    "token usage": ("used_share", _share),
    "full token usage": ("used_share", _share),
    "gen throughput (token/s)": ("output_tokens_s", _speed),
    "input throughput (token/s)": ("prompt_tokens_s", _speed),
    "#new-seq": ("new_requests", _count),
    "#new-token": ("new_tokens", _count),
    "#cached-token": ("cached_tokens", _count),
    "cache hit rate": ("hit_rate", _share),
    "#tokens": ("tokens", _count),
    "k size": ("keys", _size),
    "v size": ("values", _size),
    "kv size": ("memory", _size),
    "max_total_num_tokens": ("tokens", _count),
    "max_running_requests": ("max_running", _count),
    "context_len": ("max_len", _count),
    "#retracted_reqs": ("count", _count),
    "#new_token_ratio": ("ratio", _ratio),
}
