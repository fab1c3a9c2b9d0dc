"""Who loses memory when it runs out, and whether it is computed again or comes back by a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvlib.served import ServedRequest
from kvlib.sizes import whole_number

Victim = Callable[[Sequence[ServedRequest]], ServedRequest]


def newest(running: Sequence[ServedRequest]) -> ServedRequest:
    """Chooses the one that began last: it has the least to lose. Source: vLLM, LightLLM."""
    return running[-1]


def oldest(running: Sequence[ServedRequest]) -> ServedRequest:
    """Chooses the one that began first: a bad choice to compare with."""
    return running[0]


def fewest_outputs(running: Sequence[ServedRequest]) -> ServedRequest:
    """Chooses the one with the fewest output tokens; of several that with the longest prompt.

    Source: SGLang 0.5.23, retraction.
    """
    return min(running, key=lambda job: (job.num_outputs, -job.request.prompt_tokens))


def lowest_priority(running: Sequence[ServedRequest]) -> ServedRequest:
    """Chooses the one that matters least; of several the last to arrive. Source: vLLM V1."""
    return max(running, key=lambda job: (job.request.priority, job.order))


class SwapSpace:
    """Host memory for the tokens of preempted requests; what does not fit is computed again.

    Args:
        num_tokens: how many it holds.

    Raises:
        TypeError, ValueError: not a whole number of at least 1.

    Example:
        >>> space = SwapSpace(100)
        >>> space.take(70), space.take(40), space.num_free
        (True, False, 30)
    """

    def __init__(self, num_tokens: int) -> None:
        whole_number("num_tokens", num_tokens)
        self.num_tokens = self.num_free = num_tokens

    def take(self, num_tokens: int) -> bool:
        """Takes so many tokens in, if they fit; answers whether they did.

        Raises:
            TypeError, ValueError: not a whole number of at least 0. Nothing changes.
        """
        whole_number("num_tokens", num_tokens, least=0)
        if num_tokens > self.num_free:
            return False
        self.num_free -= num_tokens
        return True

    def give(self, num_tokens: int) -> None:
        """Makes room again.

        Raises:
            TypeError, ValueError: not a whole number of at least 0, or more than was taken in.
                Nothing changes.
        """
        whole_number("num_tokens", num_tokens, least=0)
        if num_tokens > self.num_tokens - self.num_free:
            held = self.num_tokens - self.num_free
            raise ValueError(f"asked to give back {num_tokens} tokens, {held} were taken in")
        self.num_free += num_tokens

    def check(self) -> None:
        """Proves that no more is free than there is, and no less than nothing.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        free, total = self.num_free, self.num_tokens
        assert 0 <= free <= total, f"{free} tokens free of {total} in the swap space"
