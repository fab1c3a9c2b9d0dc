"""Which instance a request goes to: in turn, by load, or to where its prefix lies.

Each instance of a model keeps a cache of its own, so the choice decides what is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from kvlib.request import Request


class Instance(Protocol):
    """What a router may look at."""

    num_waiting: int
    num_running: int
    load_tokens: int  # tokens that it holds, and that wait for it

    def cached_tokens(self, request: Request) -> int:
        """Returns how many of the request's prompt tokens lie in its cache."""


class Router(Protocol):
    """Chooses an instance for each request, in order of arrival."""

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """Returns the index of an instance; `ValueError` if there is none."""


class RoundRobin:
    """Each instance in turn, whatever it holds and however busy it is.

    Example:
        >>> router = RoundRobin()
        >>> [router.choose(None, ["one", "two"]) for _ in range(3)]
        [0, 1, 0]
    """

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """Returns the index behind the last one chosen; `ValueError` without an instance."""
        index = self._next % _number_of(instances)
        self._next = index + 1
        return index


class LeastLoaded:
    """The instance with the fewest tokens held and waiting; the lowest index among equals.

    Example:
        >>> from types import SimpleNamespace as Instance
        >>> LeastLoaded().choose(None, [Instance(load_tokens=n) for n in (50, 20, 20)])
        1
    """

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """Returns the index of the least loaded; `ValueError` without an instance."""
        return min(range(_number_of(instances)), key=lambda index: instances[index].load_tokens)


class TwoChoices:
    """The less loaded of two different instances drawn at random; the lower index if equal.

    Only two loads are looked at, however many instances there are.

    Args:
        seed: equal seeds draw equally.

    Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (IEEE TPDS 2001):
    two choices instead of one shorten the time in the system exponentially, a third only by a
    constant factor. There, choices are drawn independently and count customers, not tokens.

    Example:
        Of two instances both are drawn:

        >>> from types import SimpleNamespace as Instance
        >>> TwoChoices(seed=1).choose(None, [Instance(load_tokens=n) for n in (50, 20)])
        1
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(f"two choices/{seed}")

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """Returns the index of the less loaded of two; `ValueError` without an instance."""
        num_instances = _number_of(instances)
        first = int(self._random.random() * num_instances)
        # The second is drawn from the others, by its distance from the first.
        distance = 1 + int(self._random.random() * (num_instances - 1))
        second = (first + distance) % num_instances
        return min(first, second, key=lambda index: (instances[index].load_tokens, index))


class PrefixAffinity:
    """The instance that has most of the prompt cached, unless it is too busy.

    Among those with equally many cached tokens, none included, the least loaded is taken, and among
    equals the lowest index. If its load exceeds `load_cap` times the mean load, the request goes
    to the least loaded of all, and its prefix is computed there once more.

    Args:
        load_cap: at least 1; 1 sends nothing to an instance above the mean, infinity ignores load.

    Raises:
        ValueError: the cap is below 1.

    Source: the thought is that of SGLang's router (`docs/router/router.md` of its repository),
    which goes by load while the most and the fewest pending requests differ by more than
    `balance_abs_threshold` and by more than the factor `balance_rel_threshold`.

    Example:
        The mean load is 50; the second instance has the prefix and twice the mean:

        >>> from types import SimpleNamespace as Instance
        >>> loads, cached = (10, 100, 40), (0, 32, 16)
        >>> instances = [
        ...     Instance(load_tokens=load, cached_tokens=lambda request, n=n: n)
        ...     for load, n in zip(loads, cached)
        ... ]
        >>> PrefixAffinity(2.0).choose(None, instances), PrefixAffinity(1.9).choose(None, instances)
        (1, 0)
    """

    def __init__(self, load_cap: float = 1.5) -> None:
        if not load_cap >= 1:
            raise ValueError(f"load_cap is at least 1, got {load_cap}")
        self.load_cap = load_cap

    def choose(self, request: Request, instances: Sequence[Instance]) -> int:
        """Returns the index of the instance to take; `ValueError` without an instance."""
        num_instances = _number_of(instances)
        loads = [instance.load_tokens for instance in instances]
        cached = [instance.cached_tokens(request) for instance in instances]
        best = min(range(num_instances), key=lambda index: (-cached[index], loads[index]))
        if loads[best] * num_instances <= self.load_cap * sum(loads):
            return best
        return loads.index(min(loads))


def _number_of(instances: Sequence[Instance]) -> int:
    if not instances:
        raise ValueError("a request goes to one of at least 1 instance, got 0")
    return len(instances)
