"""Settings of an engine's knobs, tried by serving requests in the simulator.

Every score here is as good as its clock. What does not hang on the clock is the habit: the same
requests for every setting. What to make of the scores is in `kvlib.ranking`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, TypeVar

from kvlib.admission import AdmitPrompt
from kvlib.catalog import GPU, ModelShape
from kvlib.clock import RooflineClock
from kvlib.comparison import slots_on
from kvlib.engine_configs import Configuration
from kvlib.request import Request
from kvlib.scheduled_step import StepLimits
from kvlib.serving import serve
from kvlib.serving_run import ServingRun, Target

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
