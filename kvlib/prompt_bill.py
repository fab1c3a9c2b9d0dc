"""What prompts cost with a cache in which everything stays: part by part, and in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from kvlib.prefix_replay import prompt_content
from kvlib.prompts import Ask, Template
from kvlib.request import Request


@dataclass(frozen=True)
class Bill:
    """What prompts cost with a cache in which everything stays.

    Attributes:
        by_part: for each part, in order, its tokens and how many of them were found.
        seconds: for computing the rest, each prompt alone.
    """

    by_part: dict[str, tuple[int, int]]
    seconds: float

    @property
    def prompt_tokens(self) -> int:
        """All tokens of the prompts."""
        return sum(tokens for tokens, _ in self.by_part.values())

    @property
    def found_tokens(self) -> int:
        """Of those, found in the cache."""
        return sum(found for _, found in self.by_part.values())

    @property
    def computed_tokens(self) -> int:
        """Of those, computed."""
        return self.prompt_tokens - self.found_tokens

    @property
    def prefix_hit_rate(self) -> float:
        """Cached prompt tokens / prompt tokens."""
        return self.found_tokens / self.prompt_tokens


def found_tokens(requests: Iterable[Request], block_size: int = 16) -> list[int]:
    """Returns how many leading tokens of each prompt earlier prompts have left, in whole blocks.

    At least one token of a prompt is left to be computed. Answers are not kept here; where an
    engine keeps them, the next turn finds a little more.

    Example:
        >>> prompts = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 3, 4)]
        >>> found_tokens([Request(i, None, len(p), 1, token_ids=(*p, 0))
        ...               for i, p in enumerate(prompts)], block_size=2)
        [0, 4, 2]
    """
    known: set = set()
    counts = []
    for request in requests:
        content = prompt_content(request, block_size)
        keys = [content.key(i) for i in range(content.num_blocks)]
        may = keys[: (request.prompt_tokens - 1) // block_size]
        found = next((i for i, key in enumerate(may) if key not in known), len(may))
        counts.append(found * block_size)
        known.update(keys)
    return counts


def bill(
    template: Template,
    turns: Sequence[Ask],
    prefill: Callable[[int, int], float],
    block_size: int = 16,
) -> Bill:
    """Returns what a template's prompts cost.

    Args:
        template: how prompts are made.
        turns: in order.
        prefill: seconds for so many new tokens behind so many cached ones.
        block_size: tokens of a block.
    """
    counts = found_tokens(template.requests(turns), block_size)
    sums = {name: [0, 0] for name in template.order}
    seconds = []
    for ask, found in zip(turns, counts, strict=True):
        start = 0
        for name, tokens in template.parts(ask):
            sums[name][0] += len(tokens)
            sums[name][1] += min(max(found - start, 0), len(tokens))
            start += len(tokens)
        seconds.append(prefill(start - found, found))
    return Bill({name: tuple(pair) for name, pair in sums.items()}, fsum(seconds))
