"""What a cache would give up if it knew all requests beforehand: Belady's rule, a reference."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from math import inf

from kvlib.content import Content
from kvlib.prefix_replay import prompt_content
from kvlib.request import Request
from kvlib.retention import Rank, RankedPolicy, Use


class FarthestNextUse(RankedPolicy):
    """Gives up the key whose next use is farthest away, as Belady's policy does for single keys.

    It is told all requests beforehand, so it is a reference and no policy to run. For prefixes it
    is no proven bound: a block can be used again and still not be found, for want of one before it.

    Args:
        requests: all of them, in the order of the replay.
        block_size: tokens per block.

    Example:
        >>> from kvlib.prefix_replay import replay_prefix
        >>> prompts = [(1,), (2,), (3,), (1,)]
        >>> requests = [Request(i, None, 1, 1, token_ids=(*p, 0)) for i, p in enumerate(prompts)]
        >>> known = FarthestNextUse(requests, block_size=1)
        >>> replay_prefix(requests, 1, policy=known, block_size=1).hit_tokens
        1
        >>> replay_prefix(requests, 1, block_size=1).hit_tokens
        0
    """

    def __init__(self, requests: Iterable[Request], block_size: int = 512) -> None:
        super().__init__()
        self._next: dict[Hashable, deque[float]] = {}
        for time, request in enumerate(requests):
            content = prompt_content(request, block_size)
            for i in range(content.num_blocks):
                self._next.setdefault(content.key(i), deque()).append(time)

    def rank(self, use: Use) -> Rank:
        """Returns the next use, the farthest first; of one request the last block first."""
        return (-use.until, use.used)

    def add(self, key: Hashable, content: Content | None = None, index: int = 0) -> None:
        """Takes a key, as the next of its uses; raises as `RankedPolicy.add`."""
        super().add(key, content, index)
        self._uses[key].until = self._after(key)

    def use(self, key: Hashable) -> None:
        """Notes the next use of a key."""
        self._uses[key].until = self._after(key)
        super().use(key)

    def _after(self, key: Hashable) -> float:
        times = self._next[key]
        times.popleft()
        return times[0] if times else inf
