"""What serving a workload has come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import isfinite

from kvlib.histogram import Histogram
from kvlib.metrics import Metrics
from kvlib.scheduled_step import Step
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.waste import PARTS, MemorySplit


@dataclass(frozen=True)
class Target:
    """The latency that a request should keep, in seconds.

    Attributes:
        ttft_s: to its first token.
        tpot_s: for each token after it, on average.
    """

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)!r}")


@dataclass
class ServingRun:
    """Counts of one run; sizes in tokens. Its memory does not grow with the number of requests.

    Attributes:
        target: the latency that good requests keep.
        timed: whether there was a clock; without it every time is a number of steps.
        stopped: the run was stopped before its end.
        num_requests: that arrived.
        finished: got all of their tokens.
        unfinished: were waiting or running when the run was stopped.
        refused: could never be served, and were told so when they came.
        cut_short: ended at their limit, before they would have ended by themselves.
        preempted: how often a request lost its memory.
        recomputed_tokens: computed again because of that.
        computed_tokens: in all steps.
        swapped_tokens: moved between device and host.
        prompt_tokens: of the requests that ended.
        cached_tokens: of those, found in memory when the request first began.
        output_tokens: of the requests that ended.
        steps: run.
        busy_s: seconds, or steps, in which a step ran, over all instances.
        now_s: when the last step ended.
        peak_running: the most requests that ran in one step.
        request_s: seconds, or steps, that requests ran, in all.
        good: requests that kept the target.
        ttft_s: times to first token.
        tpot_s: times for each token after it, one mean a request.
        kept_s: tokens kept for later requests, times seconds or steps.
        part_s: for each part of a `MemorySplit` its tokens, times seconds or steps.
    """

    target: Target | None
    timed: bool
    stopped: bool = False
    num_requests: int = 0
    finished: int = 0
    unfinished: int = 0
    refused: int = 0
    cut_short: int = 0
    preempted: int = 0
    recomputed_tokens: int = 0
    computed_tokens: int = 0
    swapped_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    busy_s: float = 0.0
    now_s: float = 0.0
    peak_running: int = 0
    request_s: float = 0.0
    good: int = 0
    ttft_s: Histogram = field(default_factory=Histogram)
    tpot_s: Histogram = field(default_factory=Histogram)
    kept_s: float = 0.0
    part_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def began(self, scheduler: Scheduler, step: Step, seconds: float) -> None:
        """Counts a step that was scheduled, before it is reported back."""
        batch = scheduler.running
        running, num_tokens = len(batch), step.num_tokens
        self.steps += 1
        self.busy_s += seconds
        self.preempted += step.num_preempted
        self.swapped_tokens += step.num_swapped
        self.computed_tokens += num_tokens
        self.peak_running = max(self.peak_running, running)
        self.request_s += running * seconds
        memory, part_s = scheduler.memory, self.part_s
        held, room = memory.num_held, batch.room_tokens
        unfilled = room - batch.computed_tokens - num_tokens
        never = room - batch.needed_tokens
        head = scheduler.waiting.head()
        stranded = memory.stranded(scheduler.admission.room(head)) if head else 0
        part_s["used"] += (held - unfilled) * seconds
        part_s["reservation"] += (unfilled - never) * seconds
        part_s["internal_fragmentation"] += never * seconds
        part_s["external_fragmentation"] += stranded * seconds
        part_s["free"] += (memory.size - held - stranded) * seconds
        self.kept_s += memory.num_kept * seconds

    def ended(self, job: ServedRequest) -> None:
        """Counts a request that has all of its tokens."""
        self.finished += 1
        outputs = job.num_outputs
        self.cut_short += outputs < job.request.output_tokens
        self.prompt_tokens += job.request.prompt_tokens
        self.output_tokens += outputs
        self.cached_tokens += job.num_cached_first
        if not self.timed:
            return
        ttft_s = job.first_token_s - job.arrived_s
        tpot_s = (job.finished_s - job.first_token_s) / (outputs - 1) if outputs > 1 else 0.0
        self.ttft_s.add(ttft_s)
        if outputs > 1:
            self.tpot_s.add(tpot_s)
        if self.target:
            self.good += ttft_s <= self.target.ttft_s and tpot_s <= self.target.tpot_s

    @property
    def mean_running(self) -> float:
        """Requests running in a step, on average over the time of steps."""
        return self.request_s / self.busy_s if self.busy_s else 0.0

    @property
    def prefix_hit_rate(self) -> float:
        """Cached prompt tokens / prompt tokens, of the requests that ended."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def recomputed_share(self) -> float:
        """Tokens computed again / all tokens computed."""
        return self.recomputed_tokens / self.computed_tokens if self.computed_tokens else 0.0

    def share(self, part: str) -> float:
        """Returns the share of memory that a part took, on average over the time of steps."""
        return self.part_s[part] / (sum(self.part_s.values()) or 1)

    def metrics(self, name: str) -> Metrics:
        """Returns the run as a row of the scoreboard; times only where there was a clock.

        Of a run without a step nothing was measured, nor a hit rate where no request has ended.
        """
        # Sums are rounded, not parts, so that the parts add up to the whole and none is negative.
        means = (self.part_s[part] / (self.busy_s or 1) for part in PARTS)
        ends = [round(end) for end in accumulate(means, initial=0.0)]
        return Metrics(
            name,
            split=MemorySplit(ends[-1], *(end - start for start, end in pairwise(ends)))
            if self.busy_s
            else None,
            admitted_requests=self.peak_running,
            ttft_s=self.ttft_s.percentile(50) if self.timed and self.ttft_s.count else None,
            tpot_s=self.tpot_s.percentile(50) if self.timed and self.tpot_s.count else None,
            goodput_requests_per_s=self.good / self.now_s if self.target and self.now_s else None,
            prefix_hit_rate=self.prefix_hit_rate if self.finished else None,
        )
