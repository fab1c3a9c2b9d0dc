"""May the next request in line begin? Six answers, from hopeful to certain.

A request's output length is unknown. Who admits many may have to take memory back; who admits few
leaves memory empty. Each rule says how much room a request is given at once, and whether to begin.
While nothing runs, the memory alone decides, so that no rule can keep a request waiting for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from kvlib.judgement import Reservation
from kvlib.memory import Memory
from kvlib.plan import SequenceTooLong
from kvlib.served import ServedRequest
from kvlib.sizes import whole_number


class Admission(Protocol):
    """A rule for who may begin."""

    def room(self, job: ServedRequest) -> int:
        """Returns for how many tokens a request is given memory when it begins."""

    def admits(self, job: ServedRequest, memory: Memory, running: Sequence[ServedRequest]) -> bool:
        """Answers whether a request may begin beside those that run."""

    def stepped(self, running: Sequence[ServedRequest], num_preempted: int) -> None:
        """Told after every step who runs, and how many lost their memory in it."""


@dataclass
class AdmitPrompt:
    """Begins when the tokens known so far fit, and a share of all memory stays free beside them.

    Args:
        watermark: that share.

    Raises:
        ValueError: it is not in `[0, 1)`.

    Source: vLLM V0 `core/block_manager.py` (0.01), V1 `config/scheduler.py` (0).
    """

    watermark: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark is a share of memory in [0, 1), got {self.watermark!r}")

    def room(self, job: ServedRequest) -> int:
        """Returns the tokens known."""
        return job.num_tokens

    def admits(self, job: ServedRequest, memory: Memory, running: Sequence[ServedRequest]) -> bool:
        """Answers whether what is free suffices and leaves the watermark."""
        return memory.cost(job, job.num_tokens) + self.watermark * memory.size <= memory.num_free

    def stepped(self, running: Sequence[ServedRequest], num_preempted: int) -> None:
        """Remembers nothing."""


@dataclass
class AdmitAboveMargin(AdmitPrompt):
    """Begins when the tokens known fit, as long as a share of all memory was free before.

    Unlike `AdmitPrompt`, it lets a prompt take the share itself: only the next one finds it gone.

    Source: transformers 5.24.0, `generation/continuous_batching/scheduler.py` (0.15).
    """

    def admits(self, job: ServedRequest, memory: Memory, running: Sequence[ServedRequest]) -> bool:
        """Answers whether the share is free, and the tokens fit."""
        enough = memory.num_free >= self.watermark * memory.size
        return enough and memory.cost(job, job.num_tokens) <= memory.num_free


@dataclass
class AdmitReserved:
    """Begins when all it may ever need fits, and holds that from the start.

    Args:
        reservation: how much that is; None for the prompt and all output its client allows.
        max_total_tokens: the most that those who run may hold together, where a server sets it
            below its memory; None for no such budget.

    Source: Hugging Face TGI (token budgets), TensorRT-LLM (GUARANTEED_NO_EVICT), Orca.
    """

    reservation: Reservation | None = None
    max_total_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_total_tokens is not None:
            whole_number("max_total_tokens", self.max_total_tokens)

    def room(self, job: ServedRequest) -> int:
        """Returns what the reservation says, or the request's limit.

        Raises:
            SequenceTooLong: that alone is above the budget.
        """
        asked = self.reservation.reserve(job.request) if self.reservation else job.limit
        if self.max_total_tokens is not None and asked > self.max_total_tokens:
            raise SequenceTooLong(
                f"request {job.request.request_id} asked for {asked} tokens, max_total_tokens is"
                f" {self.max_total_tokens}"
            )
        return max(asked, job.num_tokens)

    def admits(self, job: ServedRequest, memory: Memory, running: Sequence[ServedRequest]) -> bool:
        """Answers whether it fits into memory, and into the budget."""
        asked = self.room(job)
        if memory.cost(job, asked) > memory.num_free:
            return False
        held = sum(each.room for each in running) if self.max_total_tokens else 0
        return self.max_total_tokens is None or held + asked <= self.max_total_tokens

    def stepped(self, running: Sequence[ServedRequest], num_preempted: int) -> None:
        """Remembers nothing."""


@dataclass
class AdmitPredictedPeak:
    """Begins when the most that will be held at any time to come is predicted to fit.

    Requests end one after another, the one with the least left first. Just before an end, all that
    are left have grown by as much; the largest of these sums is the peak.

    Args:
        least_outputs: outputs that a request is expected to make at least.
        growth: how many times what it has made it is expected to make in all.
        told: the lengths are known, as a router may know them; the best that a prediction can do.

    Source: LightLLM, the "efficient router" (fc72ffab).

    Example:
        Of one that holds 10 and has 2 left, and one that holds 4 and has 5 left, the peak is the
        end of the first: 12 and 6.

        >>> AdmitPredictedPeak.peak([(10, 2), (4, 5)])
        18
    """

    least_outputs: int = 1024
    growth: float = 1.1
    told: bool = False

    def __post_init__(self) -> None:
        whole_number("least_outputs", self.least_outputs)
        if not self.growth >= 1:
            raise ValueError(f"growth must be at least 1, got {self.growth!r}")

    @staticmethod
    def peak(held_and_left: Sequence[tuple[int, int]]) -> int:
        """Returns the most tokens held at any end; each request holds some and has some left."""
        longest_first = sorted(held_and_left, key=lambda each: -each[1])
        together = accumulate(held for held, _ in longest_first)
        ends = zip(together, longest_first, strict=True)
        return max(held + left * (i + 1) for i, (held, (_, left)) in enumerate(ends))

    def room(self, job: ServedRequest) -> int:
        """Returns the tokens known."""
        return job.num_tokens

    def admits(self, job: ServedRequest, memory: Memory, running: Sequence[ServedRequest]) -> bool:
        """Answers whether the peak with it stays below the memory, and its tokens fit now."""
        if memory.cost(job, job.num_tokens) > memory.num_free:
            return False
        expected = [(each.num_tokens, self._left(each)) for each in (*running, job)]
        return self.peak(expected) < memory.size

    def stepped(self, running: Sequence[ServedRequest], num_preempted: int) -> None:
        """Remembers nothing."""

    def _left(self, job: ServedRequest) -> int:
        if self.told:
            return job.stop_at - job.num_tokens
        made = job.num_outputs
        return min(job.max_outputs, max(int(self.growth * made), self.least_outputs)) - made


@dataclass
class AdmitDiscounted:
    """Begins when a share of all output that clients allow fits; the share learns.

    It falls step by step while nobody loses memory, and jumps up when somebody does.

    Args:
        initial: the share at first.
        floor: how much of `initial` it falls to.
        steps: in how many steps.
        most_outputs: output counted for one request at most.
        clear_steps: outputs that each running request should still make after the share jumped.

    Source: SGLang 0.5.23, `new_token_ratio_tracker.py` and the schedule policy's budget.
    """

    initial: float = 0.7
    floor: float = 0.14
    steps: int = 600
    most_outputs: int = 4096
    clear_steps: int = 20

    def __post_init__(self) -> None:
        if not (0 < self.initial <= 1 and 0 <= self.floor <= 1):
            raise ValueError(
                f"initial is in (0, 1] and floor in [0, 1], got {self.initial!r}, {self.floor!r}"
            )
        whole_number("steps", self.steps)
        whole_number("most_outputs", self.most_outputs)
        self.share = self.initial

    def room(self, job: ServedRequest) -> int:
        """Returns the tokens known."""
        return job.num_tokens

    def admits(self, job: ServedRequest, memory: Memory, running: Sequence[ServedRequest]) -> bool:
        """Answers whether its tokens and outputs fit beside a share of the others' outputs."""
        most = self.most_outputs
        promised = sum(min(each.limit - each.num_tokens, most) for each in running) * self.share
        own = memory.cost(job, job.num_tokens) + min(job.limit - job.num_tokens, most)
        return own + promised <= memory.num_free

    def stepped(self, running: Sequence[ServedRequest], num_preempted: int) -> None:
        """Lowers the share a little, or sets it to what those that run have shown to need."""
        if not num_preempted:
            lowest = self.initial * self.floor
            self.share = max(lowest, self.share - (self.initial - lowest) / self.steps)
            return
        made = sum(each.num_outputs for each in running) + self.clear_steps * len(running)
        self.share = min(1.0, made / (sum(each.max_outputs for each in running) + 1))
