"""Which knob matters, which setting to take, and what of its gain is left on other requests.

Effects are taken over several workloads and not one, no knob is turned that shows no effect, and a
choice is scored on requests that it has not seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, prod
from typing import Any, TypeVar

from kvlib.tuning import Setting, knobs

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Effect:
    """How much one knob moves the score.

    Attributes:
        knob: its name.
        best: the value with the highest score, averaged over all others' values and workloads.
        worst: the one with the lowest.
        gains: on each workload, how far the best lies above the worst.
    """

    knob: str
    best: Any
    worst: Any
    gains: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The gain, averaged over workloads."""
        return fsum(self.gains) / len(self.gains)

    @property
    def clear(self) -> bool:
        """Whether the best is above the worst on every workload."""
        return min(self.gains) > 0


def ranking(scores: Mapping[Setting, Sequence[float]]) -> list[Effect]:
    """Ranks knobs by their effect, the largest first.

    Args:
        scores: of a whole grid: every combination of the values that occur, on the same workloads.

    Raises:
        ValueError: a combination is missing, so that one knob's average would hide another's.

    Example:
        >>> from kvlib.tuning import grid
        >>> scores = {s: [s.max_tokens / 1024, s.max_tokens / 1024 + s.block_size % 3]
        ...           for s in grid(Setting(), max_tokens=(1024, 2048), block_size=(16, 64))}
        >>> [(e.knob, e.best, e.gains, e.clear) for e in ranking(scores)][:2]
        [('max_tokens', 2048, (1.0, 1.0), True), ('block_size', 16, (0.0, 0.0), False)]
    """
    names = knobs(next(iter(scores)))
    values = {knob: list(dict.fromkeys(getattr(s, knob) for s in scores)) for knob in names}
    if (whole := prod(map(len, values.values()))) != len(scores):
        raise ValueError(
            f"a ranking needs all {whole} combinations of the values, got {len(scores)}"
        )
    effects = [_effect(knob, values[knob], scores) for knob in names]
    return sorted(effects, key=lambda effect: -effect.mean)


def _effect(knob: str, values: list[Any], scores: Mapping[Setting, Sequence[float]]) -> Effect:
    rows = {v: [row for s, row in scores.items() if getattr(s, knob) == v] for v in values}
    means = {v: [fsum(column) / len(r) for column in zip(*r, strict=True)] for v, r in rows.items()}
    best, worst = (pick(values, key=lambda v: fsum(means[v])) for pick in (max, min))
    gains = (a - b for a, b in zip(means[best], means[worst], strict=True))
    return Effect(knob, best, worst, tuple(gains))


def choose(
    scores: Mapping[Setting, Sequence[float]], default: Setting, slack: float = 0.0
) -> Setting:
    """Returns a setting that is as good as the best, with as few knobs turned as possible.

    A knob that did nothing on these requests may do harm on others; its default is what others
    have tried. With equally many turned, the higher mean is taken, then the earlier setting.

    Args:
        scores: of each setting, on the same workloads.
        default: where knobs stay that need not be turned.
        slack: how far below the best mean is still as good: the noise.

    Example:
        >>> scores = {Setting(8): [0.9], Setting(8, max_running=4): [0.91], Setting(): [0.5]}
        >>> choose(scores, Setting(), slack=0.02)
        Setting(block_size=8, max_tokens=2048, max_running=256, watermark=0.0)
    """
    means = {setting: fsum(row) / len(row) for setting, row in scores.items()}
    enough = max(means.values()) - slack
    near = [setting for setting, mean in means.items() if mean >= enough]
    return min(near, key=lambda setting: (len(setting.changed(default)), -means[setting]))


def gains(
    scores: Mapping[Setting, Sequence[float]], setting: Setting, default: Setting
) -> list[float]:
    """Returns how far a setting lies above the default on each workload.

    Raises:
        KeyError: one of them was not tried.
    """
    return [a - b for a, b in zip(scores[setting], scores[default], strict=True)]


def pareto_front(points: Mapping[K, tuple[float, float]]) -> list[K]:
    """Returns whom nobody beats in one figure without losing in the other.

    Args:
        points: name to a figure that should be high and one that should be low.

    Returns:
        Names in falling order of the first figure; of equal points the first one given.

    Example:
        >>> pareto_front({"a": (5, 9), "b": (4, 2), "c": (4, 3), "d": (1, 2)})
        ['a', 'b']
    """
    front: list[K] = []
    for name in sorted(points, key=lambda name: (-points[name][0], points[name][1])):
        if not front or points[name][1] < points[front[-1]][1]:
            front.append(name)
    return front
