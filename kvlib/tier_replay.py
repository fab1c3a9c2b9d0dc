"""What requests find of their prompts in each tier of a stack: counted, not assumed.

As in `kvlib.prefix_replay` requests come one after another, so there is no batch and no time: what
is counted is content, capacities and policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvlib.prefix_replay import prompt_content
from kvlib.request import Request
from kvlib.tiers import TierStack


@dataclass(frozen=True)
class TierReplay:
    """What a replay counted after its warm-up.

    Attributes:
        found: for each request, the tokens found in each tier: whole blocks from the first on, the
            last one cut to the prompt's end.
        prompts: for each request, its prompt tokens.
        bytes_read: of each tier, by moves to others.
        bytes_written: into each tier; the fastest is written by the model too.
        num_dropped: blocks whose last copy was evicted.
    """

    found: tuple[tuple[int, ...], ...]
    prompts: tuple[int, ...]
    bytes_read: tuple[int, ...]
    bytes_written: tuple[int, ...]
    num_dropped: int

    @property
    def hit_rates(self) -> tuple[float, ...]:
        """Tokens found in each tier as a share of all prompt tokens."""
        total = sum(self.prompts)
        return tuple(sum(tokens) / total for tokens in zip(*self.found, strict=True))


def replay_tiers(
    requests: Iterable[Request],
    stack: TierStack,
    *,
    block_size: int = 512,
    warmup_fraction: float = 0.0,
) -> TierReplay:
    """Counts what requests find, and in which tier.

    What the stack holds of a prompt is loaded, also behind a gap, where it is not found; all else
    is stored. The last block comes first, so that of a prompt its end is given up first. A block
    that its own request pushes out before its turn comes counts as found, as if it had been held;
    it is then stored anew.

    Args:
        requests: with token ids or a trace's block ids, in order.
        stack: usually empty; it is changed.
        block_size: tokens per block.
        warmup_fraction: the share of requests that fill the stack before counting starts.

    Raises:
        ValueError: nothing is left to count, or a request has no content.

    Example:
        One block above, two below; the prefix 1, 2 has gone down by the time it comes back:

        >>> from kvlib.tier import Tier
        >>> prompts = [(1, 2), (3,), (1, 2)]
        >>> requests = [
        ...     Request(i, None, len(p), 1, token_ids=(*p, 0)) for i, p in enumerate(prompts)
        ... ]
        >>> stack = TierStack([Tier("gpu", 1, 9), Tier("cpu", 2, 1)], 1, policy="write_back")
        >>> replay_tiers(requests, stack, block_size=1).found
        ((0, 0), (0, 0), (0, 2))
    """
    requests = list(requests)
    first = int(len(requests) * warmup_fraction)
    if not 0 <= first < len(requests):
        raise ValueError(f"{len(requests)} requests, the first {first} of them not counted")
    found: list[tuple[int, ...]] = []
    before: tuple[tuple[int, ...], tuple[int, ...], int] = ((), (), 0)
    for i, request in enumerate(requests):
        if i == first:
            before = tuple(stack.bytes_read), tuple(stack.bytes_written), stack.num_dropped
        tokens = _visit(request, stack, block_size)
        if i >= first:
            found.append(tokens)
    read, written = (
        tuple(now - then for now, then in zip(total, start, strict=True))
        for total, start in ((stack.bytes_read, before[0]), (stack.bytes_written, before[1]))
    )
    prompts = tuple(request.prompt_tokens for request in requests[first:])
    return TierReplay(tuple(found), prompts, read, written, stack.num_dropped - before[2])


def _visit(request: Request, stack: TierStack, block_size: int) -> tuple[int, ...]:
    content = prompt_content(request, block_size)
    keys = [content.key(i) for i in range(content.num_blocks)]
    found, left = [0] * len(stack.tiers), request.prompt_tokens
    for key in keys:
        tier = stack.find(key)
        if tier is None:
            break
        found[tier] += min(block_size, left)
        left -= block_size
    for key in reversed(keys):
        if stack.find(key) is None:
            stack.store(key)
        else:
            stack.load(key)
    return tuple(found)
