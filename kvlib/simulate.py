"""Counts what a way of reserving costs when requests share one memory: no model, no clock.

One step makes one token for every running request. The queue is first come, first served.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor

from kvlib.allocator import Allocator
from kvlib.fcfs import Job, ServingLine
from kvlib.judgement import Reservation
from kvlib.paged_memory import PagedMemory
from kvlib.request import Request
from kvlib.sizes import whole_number


@dataclass(frozen=True)
class Simulation:
    """What was counted in one run; sizes in tokens, times in steps.

    Attributes:
        num_requests: `finished + unfinished + refused + turned_away`.
        finished: got all of their tokens.
        unfinished: were running when the count stopped because nobody waited any more.
        refused: could never fit, however empty the memory.
        turned_away: waited longer than their patience.
        overflowed: requests that outgrew a piece at least once.
        preempted: how often a request that could not grow lost its piece.
        copied_tokens: moved because a piece grew elsewhere.
        recomputed_tokens: given up by preemption and computed again.
        waited_with_room: requests kept waiting, or turned away, though enough was free in all.
        steps: from the first arrival until the last request left.
        peak_running: the most requests that ran in one step.
        request_steps: steps that requests ran, in all.
        waiting_steps: steps that requests stood in the queue, in all.
        rounded_up: of the internal fragmentation in `unit_steps`, what nobody asked for: the
            allocator hands out larger pieces.
        unit_steps: for each part of a `MemorySplit` its tokens, summed over the steps.
    """

    num_requests: int
    finished: int
    unfinished: int
    refused: int
    turned_away: int
    overflowed: int
    preempted: int
    copied_tokens: int
    recomputed_tokens: int
    waited_with_room: int
    steps: int
    peak_running: int
    request_steps: int
    waiting_steps: int
    rounded_up: int
    unit_steps: dict[str, int]

    @property
    def mean_running(self) -> float:
        """Requests running, on average over the steps."""
        return self.request_steps / self.steps if self.steps else 0.0

    def share(self, part: str) -> float:
        """Returns the share of the memory that a part took, on average over the steps."""
        return self.unit_steps[part] / (sum(self.unit_steps.values()) or 1)


def simulate(
    requests: Iterable[Request],
    allocator: Allocator | PagedMemory,
    policy: Reservation,
    *,
    step_s: float | None = None,
    patience_steps: int | None = None,
    drain: bool = True,
) -> Simulation:
    """Runs requests through an allocator, each with the reservation its policy gives it.

    A request holds its piece for `output_tokens` steps; at its k-th it holds `prompt + k` tokens.
    Prefill takes no step, nor does what is copied or computed again. One that outgrows its piece
    asks for twice as much, of a `PagedMemory` for one block more; where there is no room it loses
    its piece, waits ahead of all that have not begun, and asks for that size again. Free memory
    counts as external fragmentation where the request next in line could not use it; free blocks
    never do.

    Args:
        requests: in order of arrival.
        allocator: an empty one, of contiguous pieces or of blocks; it is empty again in the end.
        policy: how much is reserved; asked once for each request.
        step_s: seconds of a step. None: all requests wait in line from the start.
        patience_steps: how long a request waits before it is turned away. None: for ever.
        drain: False stops as soon as nobody waits or is still to come. The last ones would run in
            a memory that empties, and no average over the run would be one under load.

    Raises:
        TypeError, ValueError: the allocator is not empty, `step_s` is not positive,
            `patience_steps` is no whole number, times are missing or run backwards, or a
            reservation leaves no room for a first token. Nothing changes.

    Example:
        Eight slots, two at a time with a maximum of 4. The third starts when the first two leave:

        >>> from kvlib.arena import Arena
        >>> from kvlib.reservation import ReserveMaximum
        >>> three = [Request(i, None, prompt_tokens=1, output_tokens=2) for i in range(3)]
        >>> run = simulate(three, Arena(8), ReserveMaximum(4))
        >>> run.steps, run.request_steps, run.unit_steps["used"]
        (4, 6, 15)
    """
    if patience_steps is not None:
        whole_number("patience_steps", patience_steps, least=0)
    jobs, num_refused = _jobs(requests, allocator, policy, step_s)
    line = ServingLine(allocator, _most(allocator, policy), patience_steps)
    line.serve(jobs, drain)
    return Simulation(
        num_requests=len(jobs) + num_refused,
        refused=num_refused,
        overflowed=len(line.outgrown),
        waited_with_room=len(line.stuck),
        unit_steps=line.unit_steps,
        **line.counts,
    )


def _most(allocator: Allocator | PagedMemory, policy: Reservation) -> int:
    return min(policy.max_seq_len or allocator.largest_request, allocator.largest_request)


def _jobs(
    requests: Iterable[Request],
    allocator: Allocator | PagedMemory,
    policy: Reservation,
    step_s: float | None,
) -> tuple[list[Job], int]:
    """Returns the requests that can fit, with their sizes and times, and how many cannot."""
    if allocator.pieces:
        raise ValueError(f"the allocator is not empty: it holds {len(allocator.pieces)} pieces")
    if step_s is not None and not step_s > 0:
        raise ValueError(f"step_s must be above 0, got {step_s}")
    jobs, num_refused, last, most = [], 0, 0, _most(allocator, policy)
    for order, r in enumerate(requests):
        if step_s is not None and r.arrival_s is None:
            raise ValueError(f"request {r.request_id} has no arrival time")
        arrived = 0 if step_s is None else floor(r.arrival_s / step_s)
        if arrived < last:
            raise ValueError(f"request {r.request_id} arrives at step {arrived}, after {last}")
        final, asked, last = r.prompt_tokens + r.output_tokens, policy.reserve(r), arrived
        if final > most or not allocator.can_allocate(asked):
            num_refused += 1
        elif asked <= r.prompt_tokens:
            raise ValueError(f"request {r.request_id}: {asked} leaves no room for a first token")
        else:
            jobs.append(Job(order, r.prompt_tokens, final, asked, arrived, arrived))
    return jobs, num_refused
