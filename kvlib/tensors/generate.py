"""Token by token generation, with a cache or without, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from kvlib.metrics import WorkCounters
from kvlib.plan import SequenceTooLong
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.sampling import Sampling
from kvlib.tensors.step import NoCache


@dataclass(frozen=True)
class Generation:
    """What one call of `generate` produced and what it cost.

    Attributes:
        tokens: the new token ids; the stop token, if one ended it, is the last.
        gaps: for each new token by how much the best logit led the second best.
        work: the work counted from the prompt to the last token.
    """

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]
    work: WorkCounters

    def agrees_with(self, other: Generation, tolerance: float = 5e-4) -> bool:
        """Answers whether two exact ways of computing chose the same tokens.

        Rounding may swap two tokens whose logits are closer than `tolerance`; the texts part from
        there, so the comparison ends there. Any other difference is an error.

        Args:
            other: a greedy generation from the same prompt.
            tolerance: the logit error that both ways are allowed.
        """
        for mine, theirs, gap in zip(self.tokens, other.tokens, self.gaps, strict=False):
            if mine != theirs:
                return gap < tolerance
        return len(self.tokens) == len(other.tokens)


def generate(
    model: Llama,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    cache: ContiguousKVCache | NoCache | None = None,
    sampling: Sampling | None = None,
    stop_tokens: Sequence[int] = (),
) -> Generation:
    """Generates tokens after a prompt and counts the work.

    Args:
        model: the model.
        prompt: token ids, at least one.
        max_new_tokens: how many tokens to make at most.
        cache: an exact cache with a free row, or None to recompute everything at every step.
        sampling: how to choose; greedy by default.
        stop_tokens: token ids that end the text.

    Returns:
        The new tokens, how clear each choice was, and the work.

    Raises:
        ValueError, SequenceTooLong, OutOfBlocks: as `stream`; the cache is as it was.
    """
    cache = NoCache(model.device) if cache is None else cache
    before = cache.counters.snapshot()
    pairs = list(
        _steps(model, prompt, max_new_tokens, cache, sampling or Sampling(), frozenset(stop_tokens))
    )
    work = cache.counters.snapshot().since(before)
    return Generation(tuple(t for t, _ in pairs), tuple(gap for _, gap in pairs), work)


def stream(
    model: Llama,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    cache: ContiguousKVCache | NoCache | None = None,
    sampling: Sampling | None = None,
    stop_tokens: Sequence[int] = (),
) -> Iterator[int]:
    """Returns an iterator over the new tokens, each as soon as it is chosen.

    The request is checked at once; its row is reserved with the first token and given back when
    the iterator ends, fails or is closed.

    Args:
        model: as for `generate`.
        prompt: as for `generate`.
        max_new_tokens: as for `generate`.
        cache: as for `generate`.
        sampling: as for `generate`.
        stop_tokens: as for `generate`.

    Raises:
        ValueError: an empty prompt, a token outside the vocabulary, nothing to generate, or more
            tokens than the model's context.
        SequenceTooLong: prompt and new tokens can never fit the cache's row.
        OutOfBlocks: the cache has no free row now.
    """
    cache = NoCache(model.device) if cache is None else cache
    steps = _steps(
        model, prompt, max_new_tokens, cache, sampling or Sampling(), frozenset(stop_tokens)
    )
    return _tokens_only(steps)


def _tokens_only(steps: Iterator[tuple[int, float]]) -> Iterator[int]:
    with closing(steps):
        for token, _ in steps:
            yield token


def _steps(
    model: Llama,
    prompt: Sequence[int],
    max_new_tokens: int,
    cache: ContiguousKVCache | NoCache,
    sampling: Sampling,
    stop_tokens: frozenset[int],
) -> Iterator[tuple[int, float]]:
    """Refuses a request that cannot work at once, and leaves the rest to the generator."""
    _refuse_impossible(model, prompt, max_new_tokens, cache)
    return _run(model, list(prompt), max_new_tokens, cache, sampling, stop_tokens)


def _run(
    model: Llama,
    tokens: list[int],
    max_new_tokens: int,
    cache: ContiguousKVCache | NoCache,
    sampling: Sampling,
    stop_tokens: frozenset[int],
) -> Iterator[tuple[int, float]]:
    choose = sampling.chooser()
    seq_id = object()
    cache.add(seq_id)
    try:
        for _ in range(max_new_tokens):
            # What the cache holds need not be forwarded again: all that caching saves is here.
            new = tokens[cache.length(seq_id) :]
            with cache.step({seq_id: new}) as plan:
                logits = model(torch.tensor(new, device=model.device), cache, plan)[0].cpu()
            best = logits.float().topk(2).values
            tokens.append(choose(logits))
            yield tokens[-1], float(best[0] - best[1])
            if tokens[-1] in stop_tokens:
                return
    finally:
        cache.free(seq_id)


def _refuse_impossible(
    model: Llama, prompt: Sequence[int], max_new_tokens: int, cache: ContiguousKVCache | NoCache
) -> None:
    if not prompt or max_new_tokens < 1:
        raise ValueError(
            "generation needs a prompt and at least one new token, got "
            f"{len(prompt)} prompt tokens and max_new_tokens {max_new_tokens}"
        )
    vocab_size = model.config.vocab_size
    outside = next((i for i, token in enumerate(prompt) if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise ValueError(
            f"token {outside} of the prompt is outside the vocabulary [0, {vocab_size})"
        )
    # The last new token is returned but never forwarded, so it needs no slot.
    stored = len(prompt) + max_new_tokens - 1
    limit = model.config.max_position_embeddings
    if stored > limit:
        raise ValueError(
            f"{len(prompt)} prompt and {max_new_tokens} new tokens store {stored}, beyond the "
            f"model's context of {limit}"
        )
    if cache.max_seq_len is not None and stored > cache.max_seq_len:
        raise SequenceTooLong(
            f"{len(prompt)} prompt and {max_new_tokens} new tokens store {stored}, beyond the "
            f"cache's max_seq_len {cache.max_seq_len}"
        )
