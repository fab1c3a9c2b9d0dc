"""Requests on a memory one after another, without a scheduler: what each finds, and what it leaves.

Whoever calls plays the scheduler. `kvlib.prefix_replay` counts prompts on an index alone; here it
is a memory that is asked, as a scheduler asks it, so that one token at least is computed and an
answer is kept as well.
"""

from __future__ import annotations

from kvlib.memory import Memory
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.served import ServedRequest
from kvlib.sizes import whole_number


def begin(memory: Memory, request: Request) -> ServedRequest:
    """Starts a request with room for its prompt, of which nothing is computed but what was found.

    A memory that cannot give more later is asked at once for all the request may ever hold.

    Args:
        memory: any of them; one without a `block_size` compares single tokens.
        request: with token ids or a trace's block ids, where anything is to be found.

    Raises:
        SequenceTooLong: its prompt fills the memory, which leaves no room for an answer.
        OutOfBlocks: too little is free. In each case nothing changes.
        TypeError, ValueError: a length is not a whole number of at least 1, or the content does not
            go with the memory's block size.

    Example:
        Two that begin together find nothing of each other, for nothing is computed yet:

        >>> from kvlib.hash_index import HashIndex
        >>> from kvlib.kv_memory import KVMemory
        >>> memory = KVMemory(num_blocks=9, block_size=4, index=HashIndex)
        >>> a, b, c = (Request(i, None, 6, 3, token_ids=tuple(range(9))) for i in range(3))
        >>> one, two = begin(memory, a), begin(memory, b)
        >>> two.num_cached, one.room
        (0, 8)
        >>> compute(memory, one, 6); begin(memory, c).num_cached
        4
    """
    content = content_of(request, getattr(memory, "block_size", 1))
    job = ServedRequest.arrived(request, request.request_id, 0.0, memory.most, content)
    memory.start(job, job.num_tokens if memory.grows else job.limit)
    return job


def compute(memory: Memory, job: ServedRequest, num_tokens: int) -> None:
    """Computes a running request up to `num_tokens` tokens in all, and makes them known.

    Tokens that are computed are known from then on, so that it goes from a prompt into an answer.

    Raises:
        OutOfBlocks: the memory has no room for so many. Nothing changes.
        TypeError, ValueError: `num_tokens` is not a whole number of at least 1, or is less than
            what is computed. Nothing changes. A request that does not run is refused with the
            error of the memory's `grow`.
    """
    whole_number("num_tokens", num_tokens)
    if num_tokens < job.num_computed:
        raise ValueError(
            f"request {job.request.request_id} has {job.num_computed} tokens computed,"
            f" asked to compute up to {num_tokens}"
        )
    memory.grow(job, num_tokens)
    job.num_tokens = max(job.num_tokens, num_tokens)
    job.num_computed = num_tokens
    memory.index(job)


def serve_alone(memory: Memory, request: Request) -> int:
    """Serves a request from its prompt to its end, and returns how many tokens it found.

    What it leaves behind is its prompt and its answer, without the last token of the answer: that
    one is generated and never computed. It ends earlier where the memory holds no more.

    Raises:
        SequenceTooLong, OutOfBlocks, TypeError, ValueError: as `begin` and `compute`. The request
            holds nothing then.

    Example:
        The second turn begins with the first one's five tokens of prompt and three of answer. All
        but the last were computed: one whole block of 4, or 7 blocks of 1.

        >>> from kvlib.hash_index import HashIndex
        >>> from kvlib.kv_memory import KVMemory
        >>> first = Request(0, None, 5, 3, token_ids=tuple(range(8)))
        >>> second = Request(1, None, 10, 2, token_ids=tuple(range(12)))
        >>> memories = [KVMemory(48 // size, size, HashIndex) for size in (4, 1)]
        >>> [[serve_alone(memory, each) for each in (first, second)] for memory in memories]
        [[0, 4], [0, 7]]
    """
    job = begin(memory, request)
    try:
        compute(memory, job, job.stop_at - 1)
    finally:
        memory.stop(job)
    return job.num_cached
