"""What one step of a scheduler computes, and how much one step may hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvlib.plan import SequenceTooLong
from kvlib.request import Request
from kvlib.served import ServedRequest
from kvlib.sizes import whole_number


@dataclass(frozen=True)
class StepLimits:
    """How much one step may hold.

    Attributes:
        max_tokens: tokens computed.
        max_running: requests that run at a time.
        chunked_prefill: a prompt may be spread over several steps; else it is computed whole, and
            one longer than `max_tokens` is refused. A preempted request that has grown beyond it
            is then computed again in a step of its own: the one step that may hold more.
        prefill_first: while a waiting request may begin, a step computes prompts only.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1.
    """

    max_tokens: int = 8192
    max_running: int = 256
    chunked_prefill: bool = True
    prefill_first: bool = False

    def __post_init__(self) -> None:
        whole_number("max_tokens", self.max_tokens)
        whole_number("max_running", self.max_running)

    def require_prompt(self, request: Request) -> None:
        """Refuses a prompt that fits into no step.

        Raises:
            SequenceTooLong: it is longer than a step, and prompts are not cut into chunks.
        """
        if not self.chunked_prefill and request.prompt_tokens > self.max_tokens:
            raise SequenceTooLong(
                f"request {request.request_id} has a prompt of {request.prompt_tokens} tokens, a"
                f" step computes {self.max_tokens} and prompts are not cut into chunks"
            )


@dataclass(slots=True)
class Step:
    """What one step computes.

    Attributes:
        work: requests, each with how many of its tokens are computed.
        num_preempted: requests that lost their memory for it.
        num_swapped: tokens that move between device and host.
    """

    work: list[tuple[ServedRequest, int]] = field(default_factory=list)
    num_preempted: int = 0
    num_swapped: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return sum([n for _, n in self.work])  # a list, for it is asked every step

    def attention(self) -> tuple[int, int]:
        """Returns the keys read, each request's once, and the query-key pairs scored.

        To be asked before the step is reported back.
        """
        keys = pairs = 0
        for job, n in self.work:
            end = job.num_computed + n
            keys += end
            pairs += end if n == 1 else n * end - n * (n - 1) // 2
        return keys, pairs
