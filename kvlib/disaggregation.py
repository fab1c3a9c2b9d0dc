"""Prompts computed on some instances, answers decoded on others: prefill and decode apart.

Prefill is bound by arithmetic, decode by bytes. Apart, no prompt makes an answer wait, and each
side can have as many instances as it needs. The price: every prompt's keys and values are sent, the
weights lie on both sides, and neither pool helps the other when it has nothing to do.

Source: Patel et al., Splitwise (ISCA 2024); Zhong et al., DistServe (OSDI 2024). That the receiver
takes memory first and pulls then is how vLLM's NixlConnector works, by its documentation of 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite

from kvlib.blocks import BlockPool
from kvlib.clock import Clock
from kvlib.content import Content
from kvlib.disaggregated_run import DisaggregatedRun
from kvlib.handover import Link, ReceivingMemory, SendingMemory
from kvlib.handover_line import HandoverLine
from kvlib.prefix import PrefixIndex
from kvlib.pulling import Instance
from kvlib.request import Request
from kvlib.router import LeastLoaded, Router
from kvlib.scheduled_step import Step
from kvlib.scheduler import Scheduler
from kvlib.serving_run import Target
from kvlib.sizes import whole_number
from kvlib.two_pools import TwoPools


def prefill_instance(
    num_blocks: int,
    block_size: int,
    index: Callable[[BlockPool], PrefixIndex] | None = None,
    **options: object,
) -> Scheduler:
    """Returns an instance that computes prompts; `options` are the scheduler's."""
    return Scheduler(SendingMemory(num_blocks, block_size, index), **options)


def decode_instance(num_blocks: int, block_size: int, **options: object) -> Scheduler:
    """Returns an instance that decodes what it is sent; `options` are the scheduler's."""
    memory = ReceivingMemory(num_blocks, block_size)
    return Scheduler(memory, waiting=HandoverLine(), **options)


def serve_disaggregated(
    requests: Iterable[Request],
    prefill: Sequence[Scheduler],
    decode: Sequence[Scheduler],
    clock: Clock,
    link: Link,
    token_bytes: int,
    *,
    decode_clock: Clock | None = None,
    content: Callable[[Request], Content | None] = lambda request: None,
    prefill_router: Router | None = None,
    decode_router: Router | None = None,
    target: Target | None = None,
    losses: Sequence[tuple[float, int]] = (),
) -> DisaggregatedRun:
    """Serves requests on two pools until all have ended, and returns what was counted.

    A prompt is computed on one instance of `prefill`, which makes the first token and keeps the
    prompt's keys and values. An instance of `decode` takes memory for them as soon as it has some,
    in the order in which the prompts were ready; then they are sent, all layers at once, and then
    it decodes. Who waits for memory after a preemption goes before anything new is pulled. A
    request of one token ends where its prompt was computed.

    An instance sends one prompt at a time and receives one at a time, each when its turn has come
    on both sides; the turn of one whose sender was lost passes unused. A preempted answer is
    computed again where it was being decoded. Decode instances are not lost.

    Args:
        requests: in order of arrival, all with times.
        prefill: idle ones of `prefill_instance`, all with the same `max_seq_len` and limits.
        decode: idle ones of `decode_instance`, all with the same `max_seq_len` and limits.
        clock: how long steps take.
        link: between any two instances.
        token_bytes: keys and values of a token.
        decode_clock: of the decode instances, where their cards are others.
        content: what a request's tokens are, for prefixes to be found where prompts are computed.
        prefill_router: by default the least loaded.
        decode_router: by default the least loaded.
        target: the latency that a good request keeps.
        losses: prefill instances that are lost: when, and which. Whatever they had not handed over
            is computed again, elsewhere; where none is left or the one chosen refuses it, by the
            decode instances.

    Raises:
        TypeError: an instance is not of the kind that its pool needs.
        ValueError: an instance has work already, a pool is empty or its limits differ, a loss is of
            no instance, and what `serve` refuses.

    Example:
        A second a step. Two prompts of 4 tokens, 3 tokens of answer each, one instance on either
        side and a link that takes 2 seconds a prompt:

        >>> class Second:
        ...     def seconds(self, step):
        ...         return 1.0
        >>> rows = [Request(i, 0.0, 4, 3) for i in (0, 1)]
        >>> run = serve_disaggregated(rows, [prefill_instance(4, 4)], [decode_instance(4, 4)],
        ...                           Second(), Link(2e-9), token_bytes=1)
        >>> run.finished, run.bytes_sent, run.now_s  # prompts 1 s, the second arrives at 5 s
        (2, 8, 7.0)
    """
    whole_number("token_bytes", token_bytes)
    result = DisaggregatedRun(target, timed=True, num_prefill=len(prefill), num_decode=len(decode))
    _require(prefill, "prefill", SendingMemory)
    _require(decode, "decode", ReceivingMemory, HandoverLine)
    for at, which in losses:
        if not (isfinite(at) and at >= 0 and which in range(len(prefill))):
            raise ValueError(f"instance {which} of {len(prefill)} is lost at {at} s")
    clocks = clock, decode_clock or clock
    for pool, of_pool in zip((prefill, decode), clocks, strict=True):
        if any(each.running.swap for each in pool):
            of_pool.seconds(Step(num_swapped=1))  # a clock that cannot say so now will not later
    pools = TwoPools(
        [Instance(each, clocks[0], content, "prefill") for each in prefill],
        [Instance(each, clocks[1], content, "decode") for each in decode],
        (prefill_router or LeastLoaded(), decode_router or LeastLoaded()),
        lambda tokens: (tokens * token_bytes, link.seconds(tokens * token_bytes)),
        result,
    )
    pools.run(requests, losses)
    return result


def _require(pool: Sequence[Scheduler], name: str, memory: type, line: type = object) -> None:
    for each in pool:
        if not (isinstance(each.memory, memory) and isinstance(each.waiting, line)):
            raise TypeError(f"the {name} pool needs instances made by {name}_instance")
    if not pool or any(each.has_work for each in pool):
        raise ValueError(f"the {name} pool needs idle instances, one at least; got {len(pool)}")
    if len(differ := {(each.max_seq_len, each.limits) for each in pool}) > 1:
        told = "; ".join(f"{most}, {limits}" for most, limits in sorted(differ, key=str))
        raise ValueError(f"the {name} pool needs one max_seq_len and the same limits, got {told}")
