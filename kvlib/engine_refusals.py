"""What an engine refuses before a request waits: what makes no sense, and one too many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from kvlib.sizes import whole_number


class EngineFull(RuntimeError):
    """Too many requests wait already; the same request may be taken once some have begun."""


def require_request(
    prompt: Sequence[int],
    max_new_tokens: int,
    num_samples: int,
    deadline_s: float | None,
    vocab_size: int,
) -> None:
    """Refuses a request that makes no sense, whatever the engine.

    Raises:
        TypeError, ValueError: no prompt, a token that is no whole number or outside the vocabulary,
            no new token or sample to make, or a deadline that has passed.
    """
    whole_number("max_new_tokens", max_new_tokens)
    whole_number("num_samples", num_samples)
    if not prompt:
        raise ValueError("a request needs a prompt of at least 1 token, got 0")
    for i, token in enumerate(prompt):
        require_token(token, vocab_size, f"token {i} of the prompt")
    if deadline_s is not None and not deadline_s > 0:
        raise ValueError(f"deadline_s must be above 0, got {deadline_s!r}")


def require_owner(tenant: str, priority: int, stop_tokens: Iterable[int]) -> frozenset[int]:
    """Refuses a tenant, a priority or stop tokens of another kind; returns the stop tokens.

    Raises:
        TypeError: a tenant that is no text, a priority or a stop token that is no whole number.
        ValueError: a stop token below 0.
    """
    if not isinstance(tenant, str):
        raise TypeError(f"a tenant must be a text, got {tenant!r}")
    whole_number("priority", priority, least=-inf)
    tokens = [*stop_tokens]
    for token in tokens:
        whole_number("a stop token", token, least=0)
    return frozenset(tokens)


def require_token(token: int, vocab_size: int, name: str = "a token") -> None:
    """Refuses a token that the model does not know; the error does not say it, it may be a word.

    Raises:
        TypeError, ValueError: it is no whole number, or outside the vocabulary.
    """
    if not isinstance(token, int) or isinstance(token, bool):
        raise TypeError(f"{name} must be a whole number, got a {type(token).__name__}")
    if not 0 <= token < vocab_size:
        raise ValueError(f"{name} is outside the vocabulary [0, {vocab_size})")
