"""Where reserved KV memory goes: the three losses, kept apart and always named.

The split follows Figure 2 of the PagedAttention paper (Kwon et al., SOSP 2023).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

PARTS = ("used", "reservation", "internal_fragmentation", "external_fragmentation", "free")


class Allocation(NamedTuple):
    """One request's share of the memory at one moment; all three in the same unit.

    Attributes:
        reserved: what nobody else can use while the request lives.
        used: what holds a token now, at most `final`.
        final: what will hold a token when the request ends, at most `reserved`.
    """

    reserved: int
    used: int
    final: int


@dataclass(frozen=True)
class MemorySplit:
    """A budget split into what is used, what is lost in three ways, and what is still free.

    Every field counts in the unit the caller chose (tokens, slots or bytes), and they add up:
    `total = used + reservation + internal_fragmentation + external_fragmentation + free`.

    Attributes:
        total: the whole budget.
        used: holds a token now.
        reservation: held for tokens that will come; a loss only for now.
        internal_fragmentation: held for tokens that will never come.
        external_fragmentation: held by nobody, yet too small or too scattered for the next request.
        free: held by nobody and usable.
    """

    total: int
    used: int
    reservation: int
    internal_fragmentation: int
    external_fragmentation: int
    free: int

    def __post_init__(self) -> None:
        parts = (
            self.used,
            self.reservation,
            self.internal_fragmentation,
            self.external_fragmentation,
            self.free,
        )
        if min(parts) < 0 or sum(parts) != self.total:
            raise ValueError(
                f"the parts of a split are 0 or more and add up to {self.total}, got {parts}"
            )

    @property
    def utilization(self) -> float:
        """Share of the total that holds a token now; 0 of nothing."""
        return self.used / self.total if self.total else 0.0


def split(
    total: int, allocations: Iterable[Allocation], *, usable_free: int | None = None
) -> MemorySplit:
    """Splits a budget among used slots, the three losses, and what is free.

    Args:
        total: the budget, in tokens, slots or bytes.
        allocations: the live requests, in the same unit.
        usable_free: how much of the unreserved memory the next request could really be given; the
            rest counts as external fragmentation. By default all of it.

    Raises:
        ValueError: a request breaks `0 <= used <= final <= reserved`, the reservations exceed the
            total, or `usable_free` exceeds what is unreserved.

    Example:
        A budget of 20 slots, two requests that reserve 8 each. Four slots stay outside, too few for
        a third reservation of 8:

        >>> split(20, [Allocation(8, 3, 5), Allocation(8, 2, 2)], usable_free=0)
        ... # doctest: +NORMALIZE_WHITESPACE
        MemorySplit(total=20, used=5, reservation=2, internal_fragmentation=9,
                    external_fragmentation=4, free=0)
    """
    used = reservation = internal = reserved = 0
    for item in allocations:
        if not 0 <= item.used <= item.final <= item.reserved:
            raise ValueError(f"0 <= used <= final <= reserved does not hold for {item}")
        used += item.used
        reservation += item.final - item.used
        internal += item.reserved - item.final
        reserved += item.reserved
    unreserved = total - reserved
    if unreserved < 0:
        raise ValueError(f"reservations add up to {reserved} of a total of {total}")
    free = unreserved if usable_free is None else usable_free
    if not 0 <= free <= unreserved:
        raise ValueError(f"usable_free {free} is not within the {unreserved} unreserved of {total}")
    return MemorySplit(total, used, reservation, internal, unreserved - free, free)
