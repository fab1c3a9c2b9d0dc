"""Which knob matters, which setting to take, and what of its gain is left on other requests.

A setting is tried by serving requests in the simulator, so every figure here is as good as its
clock. What does not hang on the clock are the habits: the same requests for every setting, effects
over several workloads and not one, no knob turned that shows no effect, and a score on requests
that the choice has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import fsum, prod
from typing import Any, TypeVar

from kvlib.admission import AdmitPrompt
from kvlib.catalog import GPU, ModelShape
from kvlib.clock import RooflineClock
from kvlib.comparison import slots_on
from kvlib.engine_configs import Configuration
from kvlib.request import Request
from kvlib.scheduler import StepLimits
from kvlib.serving import serve
from kvlib.serving_run import ServingRun, Target

K = TypeVar("K", bound=Hashable)
W = TypeVar("W")


@dataclass(frozen=True)
class Setting:
    """Four knobs of an engine; as they are here, those of vLLM V1.

    Attributes:
        block_size: tokens of a block.
        max_tokens: tokens a step computes; so also the longest chunk of a prompt.
        max_running: requests at a time.
        watermark: the share of memory left free when a request begins.

    Example:
        >>> Setting(max_tokens=512).changed(Setting())
        ('max_tokens',)
    """

    block_size: int = 16
    max_tokens: int = 2048
    max_running: int = 256
    watermark: float = 0.0

    @property
    def configuration(self) -> Configuration:
        """An engine with these knobs, that shares no prefixes."""
        return Configuration(
            self.block_size,
            admission=lambda longest: AdmitPrompt(self.watermark),
            limits=StepLimits(self.max_tokens, self.max_running),
        )

    def changed(self, default: Setting) -> tuple[str, ...]:
        """Returns the knobs that are turned away from a default."""
        return tuple(k for k in knobs(self) if getattr(self, k) != getattr(default, k))


def knobs(setting: Setting) -> tuple[str, ...]:
    """Returns the names of a setting's knobs."""
    return tuple(field.name for field in fields(setting))


def grid(default: Setting, **values: Sequence[Any]) -> list[Setting]:
    """Returns every combination of the values given; other knobs stay as they are.

    Raises:
        TypeError: there is no such knob.

    Example:
        >>> len(grid(Setting(), block_size=(16, 64), max_tokens=(512, 1024, 2048)))
        6
    """
    return [
        replace(default, **dict(zip(values, c, strict=True))) for c in product(*values.values())
    ]


def one_at_a_time(default: Setting, **values: Sequence[Any]) -> list[Setting]:
    """Returns the default, and every setting that differs from it in one knob.

    Example:
        >>> [s.block_size for s in one_at_a_time(Setting(), block_size=(1, 16, 64))]
        [16, 1, 64]
    """
    turned = (replace(default, **{k: each}) for k, several in values.items() for each in several)
    return list(dict.fromkeys((default, *turned)))


@dataclass(frozen=True)
class Score:
    """What one setting came to on one workload.

    Attributes:
        good_share: requests that kept the target, of all that came.
        per_s: requests ended a second, from the first arrival to the last end.
        ttft_p99_s: time to the first token, 99th percentile.
        tpot_p99_s: time for each token after it, likewise.
        preempted: how often a request lost its memory.
    """

    good_share: float
    per_s: float
    ttft_p99_s: float
    tpot_p99_s: float
    preempted: int

    @classmethod
    def of(cls, run: ServingRun) -> Score:
        """Returns the score of a run; `ValueError` if no request of it had two tokens."""
        slow = run.ttft_s.percentile(99), run.tpot_s.percentile(99)
        share = run.good / run.num_requests
        return cls(share, run.finished / run.now_s, *slow, run.preempted)


@dataclass(frozen=True)
class Server:
    """What requests are served on: one card, simulated.

    Attributes:
        gpu: the card.
        model: in 2 bytes a parameter.
        target: the latency that a good request keeps.
        overhead_s: added to the clock's time of each step.
        max_seq_len: the longest request.
        clock: how long a step takes; `SerialClock` is the other one.
    """

    gpu: GPU
    model: ModelShape
    target: Target
    overhead_s: float = 0.0
    max_seq_len: int = 16_384
    clock: type[RooflineClock] = RooflineClock

    def score(self, setting: Setting, requests: Iterable[Request]) -> Score:
        """Serves requests with a setting.

        Raises:
            TypeError, ValueError: a knob's value is none, the model does not fit, a request has no
                arrival time, or nothing can be scored.
        """
        slots = slots_on(self.gpu, self.model)
        scheduler = setting.configuration.build(slots, self.max_seq_len)
        clock = self.clock(self.gpu, self.model, overhead_s=self.overhead_s)
        return Score.of(serve(requests, scheduler, clock, target=self.target))


def sweep(
    settings: Iterable[Setting], workloads: Sequence[W], score: Callable[[Setting, W], float]
) -> dict[Setting, list[float]]:
    """Returns for each setting its scores on the same workloads, in their order."""
    return {setting: [score(setting, each) for each in workloads] for setting in settings}


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
