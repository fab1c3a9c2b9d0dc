"""What a way of reserving is worth: what stays empty, and who outgrows it.

Nothing is queued and nothing grows here; `kvlib.simulate` counts what that costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from kvlib.request import Request


class Reservation(Protocol):
    """What decides the size of a reservation; `max_seq_len` is None where there is no maximum."""

    @property
    def max_seq_len(self) -> int | None:
        """The longest sequence that is served, in tokens."""

    def reserve(self, request: Request) -> int:
        """Returns the tokens to reserve for the whole sequence, at most `max_seq_len`."""


@dataclass(frozen=True)
class Judgement:
    """What a policy's reservations would have come to, in tokens at the requests' final lengths.

    Attributes:
        num_requests: judged.
        reserved_tokens: by the policy, in all.
        final_tokens: of the requests, in all, those that had no room included.
        unused_tokens: reserved and never filled.
        overflowed: requests that outgrow their reservation.
    """

    num_requests: int
    reserved_tokens: int
    final_tokens: int
    unused_tokens: int
    overflowed: int

    @property
    def overflow_share(self) -> float:
        """Share of the requests that outgrow their reservation."""
        return self.overflowed / self.num_requests

    @property
    def unused_share(self) -> float:
        """Share of the reserved tokens that is never filled."""
        return self.unused_tokens / self.reserved_tokens


def judge(policy: Reservation, requests: Iterable[Request]) -> Judgement:
    """Answers what a policy wastes and how often it falls short, on requests it has not seen.

    Raises:
        ValueError: there are no requests.

    Example:
        Two requests, 20 tokens for each output: one leaves 12 empty, one is 5 short:

        >>> from kvlib.reservation import ReservePercentile
        >>> seen = ReservePercentile([20], quantile=1)
        >>> judge(seen, [Request(0, None, 10, 8), Request(1, None, 30, 25)])
        ... # doctest: +NORMALIZE_WHITESPACE
        Judgement(num_requests=2, reserved_tokens=80, final_tokens=73, unused_tokens=12,
                  overflowed=1)
    """
    pairs = [(policy.reserve(r), r.prompt_tokens + r.output_tokens) for r in requests]
    if not pairs:
        raise ValueError("no requests to judge the policy on")
    return Judgement(
        num_requests=len(pairs),
        reserved_tokens=sum(reserved for reserved, _ in pairs),
        final_tokens=sum(final for _, final in pairs),
        unused_tokens=sum(max(0, reserved - final) for reserved, final in pairs),
        overflowed=sum(final > reserved for reserved, final in pairs),
    )


def useful_share(
    policy: Reservation,
    requests: Iterable[Request],
    round_up: Callable[[int], int] | None = None,
) -> float:
    """Returns the share of reserved tokens that hold a token, on average over decoding.

    A request with prompt `p` and output `o` lasts `o` steps and holds `p + o/2` on average:
    `sum(o * (p + o/2)) / sum(o * reserved)`. No queue, no clock, no memory limit.

    Args:
        policy: one that never reserves too little.
        requests: each weighted by its output.
        round_up: what the allocator makes of a size, such as `kvlib.buddy.power_of_two`.

    Raises:
        ValueError: there are no requests, or one would outgrow its reservation.

    Example:
        Prompt 3, output 2, 8 reserved: 4 held on average.

        >>> from kvlib.reservation import ReserveMaximum
        >>> useful_share(ReserveMaximum(8), [Request(0, None, 3, 2)])
        0.5
    """
    twice_used = reserved_steps = 0
    for r in requests:
        final, reserved = r.prompt_tokens + r.output_tokens, policy.reserve(r)
        if reserved < final:
            raise ValueError(f"request {r.request_id} grows to {final}, {reserved} are reserved")
        twice_used += r.output_tokens * (2 * r.prompt_tokens + r.output_tokens)
        reserved_steps += r.output_tokens * (round_up(reserved) if round_up else reserved)
    if not reserved_steps:
        raise ValueError("no requests to take the share over")
    return twice_used / (2 * reserved_steps)
