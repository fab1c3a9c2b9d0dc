"""How many slots to reserve for a request whose output length is not known yet.

A reservation is for the whole sequence, prompt and output, in tokens. Too much of it stays empty;
too little and the request outgrows its piece.

The first three are the baselines of the PagedAttention paper (Kwon et al., SOSP 2023, §6.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from kvlib.buddy import power_of_two
from kvlib.judgement import Judgement, Reservation, judge, useful_share
from kvlib.request import Request
from kvlib.sizes import whole_number

__all__ = [
    "Judgement",
    "Reservation",
    "ReserveMaximum",
    "ReserveOracle",
    "ReservePercentile",
    "ReservePowerOfTwo",
    "ReservePrompt",
    "judge",
    "useful_share",
]


@dataclass(frozen=True)
class ReserveMaximum:
    """Reserves for the longest sequence there may be: never too little.

    Example:
        >>> ReserveMaximum(2048).reserve(Request(0, None, prompt_tokens=10, output_tokens=25))
        2048
    """

    max_seq_len: int

    def __post_init__(self) -> None:
        whole_number("max_seq_len", self.max_seq_len)

    def reserve(self, request: Request) -> int:
        """Returns `max_seq_len`, whatever the request is."""
        return self.max_seq_len


@dataclass(frozen=True)
class ReservePowerOfTwo:
    """Reserves the prompt and the power of two at or above the output.

    A bound, no policy: it knows the output's length to within a factor of two.

    Example:
        An output of 25 is given 32:

        >>> ReservePowerOfTwo().reserve(Request(0, None, prompt_tokens=10, output_tokens=25))
        42
    """

    max_seq_len: int | None = None

    def __post_init__(self) -> None:
        _check_max(self.max_seq_len)

    def reserve(self, request: Request) -> int:
        """Returns prompt and rounded output, at most `max_seq_len`."""
        return _at_most(
            request.prompt_tokens + power_of_two(request.output_tokens), self.max_seq_len
        )


@dataclass(frozen=True)
class ReserveOracle:
    """Reserves exactly what the request will fill: the bound that knows the future.

    Example:
        >>> ReserveOracle().reserve(Request(0, None, prompt_tokens=10, output_tokens=25))
        35
    """

    max_seq_len: int | None = None

    def __post_init__(self) -> None:
        _check_max(self.max_seq_len)

    def reserve(self, request: Request) -> int:
        """Returns prompt and output, at most `max_seq_len`."""
        return _at_most(request.prompt_tokens + request.output_tokens, self.max_seq_len)


@dataclass(frozen=True)
class ReservePrompt:
    """Reserves what is known on arrival and nothing else: the prompt, and room for one token.

    Every longer output outgrows it, so it suits a memory in which growing is cheap.

    Example:
        >>> ReservePrompt().reserve(Request(0, None, prompt_tokens=10, output_tokens=25))
        11
    """

    max_seq_len: int | None = None

    def __post_init__(self) -> None:
        _check_max(self.max_seq_len)

    def reserve(self, request: Request) -> int:
        """Returns the prompt and one token, at most `max_seq_len`."""
        return _at_most(request.prompt_tokens + 1, self.max_seq_len)


class ReservePercentile:
    """Reserves the prompt and a quantile of the output lengths seen before.

    The quantile is the smallest length in the history that at least this share of the history does
    not pass, so it is always a length that was seen. Judge it on requests it has not seen.

    Args:
        history: output lengths in tokens, in any order.
        quantile: in `(0, 1]`; 1 is the longest output seen.
        max_seq_len: no reservation is larger.

    Raises:
        TypeError, ValueError: the history is empty or holds something other than whole numbers of
            at least 1, or the quantile lies outside `(0, 1]`.

    Example:
        Of four outputs, three are at most 30 tokens long:

        >>> policy = ReservePercentile([30, 10, 200, 20], quantile=0.75)
        >>> policy.output_tokens
        30
        >>> policy.reserve(Request(0, None, prompt_tokens=100, output_tokens=25))
        130
    """

    def __init__(
        self, history: Iterable[int], quantile: float, max_seq_len: int | None = None
    ) -> None:
        ordered = sorted(history)
        if not ordered:
            raise ValueError("the history is empty: a quantile needs at least one output length")
        for length in ordered:
            whole_number("an output length", length)
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile must be above 0 and at most 1, got {quantile}")
        _check_max(max_seq_len)
        self.quantile = quantile
        self.max_seq_len = max_seq_len
        # In decimals as written: 0.07 of 100 is the 7th, where the float 0.07 gives the 8th.
        self.output_tokens = ordered[ceil(Fraction(str(quantile)) * len(ordered)) - 1]

    def reserve(self, request: Request) -> int:
        """Returns prompt and learned quantile, at most `max_seq_len`."""
        return _at_most(request.prompt_tokens + self.output_tokens, self.max_seq_len)


def _check_max(max_seq_len: int | None) -> None:
    if max_seq_len is not None:
        whole_number("max_seq_len", max_seq_len)


def _at_most(tokens: int, max_seq_len: int | None) -> int:
    return tokens if max_seq_len is None else min(tokens, max_seq_len)
