"""How much of their prompts requests find in a cache of so many blocks: counted, not assumed.

Requests come one after another; each looks its prompt up and leaves all of it behind before the
next comes. So there is no batch and no time: what is counted is content, capacity and policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvlib.blocks import BlockPool
from kvlib.content import Content, TokenContent
from kvlib.prefix import PrefixIndex
from kvlib.request import Request
from kvlib.request_content import TraceContent
from kvlib.retention import RankedLRU, RankedPolicy
from kvlib.sizes import whole_number

ORDERS = ("tail-first", "head-first")


@dataclass(frozen=True)
class PrefixReplay:
    """What a replay counted after its warm-up.

    Attributes:
        hit_tokens: prompt tokens found: whole blocks from the first on, the last one cut to the
            prompt's end.
        prompt_tokens: all of them.
        hit_blocks: blocks found.
        num_blocks: blocks asked for.
        num_requests: requests counted.
    """

    hit_tokens: int
    prompt_tokens: int
    hit_blocks: int
    num_blocks: int
    num_requests: int

    @property
    def prefix_hit_rate(self) -> float:
        """Found prompt tokens as a share of all prompt tokens."""
        return self.hit_tokens / self.prompt_tokens


def replay_prefix(
    requests: Iterable[Request],
    capacity_blocks: int,
    *,
    policy: RankedPolicy | None = None,
    index: Callable[[BlockPool], PrefixIndex] | None = None,
    block_size: int = 512,
    order: str = "tail-first",
    warmup_fraction: float = 0.0,
) -> PrefixReplay:
    """Counts what requests find of their prompts.

    As published figures do, it counts a full hit whole, though an engine computes the last token
    again, and it counts a trace's partly filled last block as one that can be found.

    Args:
        requests: with token ids or a trace's block ids, in order.
        capacity_blocks: how many blocks the cache has.
        policy: empty; ranks keys. After each request the cache gives up what is too much, even of
            that request. None is `RankedLRU`.
        index: makes an index over a pool, to be used as an engine would: a request holds what it
            found while room is made for the rest, and of a prompt longer than the cache only the
            beginning is kept. With it there is no policy to name here.
        block_size: tokens per block.
        order: in which a request's keys are used, its last first or its first first.
        warmup_fraction: the share of requests that fill the cache before counting starts.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1, nothing is left to
            count, a request has no content, or policy, index and order do not go together.

    Example:
        Three blocks of 1 for two prompts in turn: the shared token stays, and of the rest what
        fits.

        >>> prompts = [(1, 2, 3), (1, 4, 5), (1, 2, 3)]
        >>> requests = [Request(i, None, 3, 1, token_ids=(*p, 0)) for i, p in enumerate(prompts)]
        >>> replay_prefix(requests, capacity_blocks=3, block_size=1).hit_tokens
        2
        >>> replay_prefix(requests, capacity_blocks=4, block_size=1).hit_tokens
        3
    """
    whole_number("capacity_blocks", capacity_blocks)
    if order not in ORDERS or (index and (policy is not None or order != ORDERS[0])):
        raise ValueError(f"orders are {ORDERS}, an index has its own policy and order; got {order}")
    requests = list(requests)
    first = int(len(requests) * warmup_fraction)
    if not 0 <= first < len(requests):
        raise ValueError(f"{len(requests)} requests, the first {first} of them not counted")
    if index is None:
        visit = _keys(RankedLRU() if policy is None else policy, capacity_blocks, order)
    else:
        visit = _blocks(index, capacity_blocks)
    return _count(requests, first, visit, block_size)


def _count(
    requests: Sequence[Request], first: int, visit: Callable[[Content], int], block_size: int
) -> PrefixReplay:
    totals = [0, 0, 0, 0]
    for i, request in enumerate(requests):
        content = prompt_content(request, block_size)
        found = visit(content)
        if i >= first:
            tokens = request.prompt_tokens
            counted = (min(found * block_size, tokens), tokens, found, content.num_blocks)
            totals = [total + each for total, each in zip(totals, counted, strict=True)]
    return PrefixReplay(*totals, len(requests) - first)


def prompt_content(request: Request, block_size: int) -> Content:
    """Returns the prompt's blocks; of a trace the partly filled last one counts as a block.

    Raises:
        ValueError: nothing is known of the prompt's tokens.
    """
    tokens = request.prompt_tokens
    if request.token_ids:
        return TokenContent(request.token_ids[:tokens], block_size)
    if request.block_ids:
        return TraceContent(request.block_ids, block_size, -(-tokens // block_size) * block_size)
    raise ValueError(f"request {request.request_id} has neither token ids nor block ids")


def _keys(policy: RankedPolicy, capacity: int, order: str) -> Callable[[Content], int]:
    def visit(content: Content) -> int:
        keys = [content.key(i) for i in range(content.num_blocks)]
        found = next((i for i, key in enumerate(keys) if key not in policy), len(keys))
        for key in reversed(keys) if order == "tail-first" else keys:
            if key in policy:
                policy.use(key)
            else:
                policy.add(key)
                policy.show(key)
        while len(policy) > capacity:
            policy.forget(policy.lowest())
        return found

    return visit


def _blocks(make: Callable[[BlockPool], PrefixIndex], capacity: int) -> Callable[[Content], int]:
    pool = BlockPool(capacity)
    index = make(pool)

    def visit(content: Content) -> int:
        found = index.find(content, content.num_blocks)
        pool.share(found)
        need = min(content.num_blocks, capacity) - len(found)
        index.make_room(need)
        blocks = found + pool.allocate(need)
        index.insert(content, blocks, len(found))
        pool.free(blocks)
        index.released(content, blocks)
        return len(found)

    return visit
