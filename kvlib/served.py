"""A request on its way through a scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvlib.allocator import Piece
from kvlib.content import Content
from kvlib.plan import SequenceTooLong
from kvlib.request import Request
from kvlib.sizes import whole_number


@dataclass(slots=True, eq=False)
class ServedRequest:
    """A request that waits or runs, and what it holds.

    A token is *known* once it is in the prompt or was generated, and *computed* once its keys and
    values are in memory. The last token generated is known and not yet computed.

    Attributes:
        request: what was asked for.
        order: its place among all requests that arrived.
        arrived_s: when it came.
        limit: the most tokens it may ever hold, prompt and output.
        stop_at: tokens, prompt and output, at which it will end by itself. Whoever plays the model
            knows it; no policy may look at it.
        content: what its tokens are, where they are known; for sharing.
        num_tokens: tokens known.
        num_computed: tokens computed.
        num_cached: of those, how many were found in memory when it last started.
        num_cached_first: how many were found when it first started.
        room: tokens its memory can hold.
        block_ids: the blocks it holds, in logical order.
        piece: the contiguous piece it holds instead.
        num_indexed: its first blocks that are known to a prefix index.
        num_started: how often it was given memory.
        num_preempted: how often it lost its memory.
        num_lost: tokens it had computed when it last lost its memory.
        num_swapped: tokens that lie in host memory until it runs again.
        first_token_s: when its first output token was there.
        finished_s: when it ended.
    """

    request: Request
    order: int
    arrived_s: float
    limit: int
    stop_at: int
    content: Content | None = None
    num_tokens: int = 0
    num_computed: int = 0
    num_cached: int = 0
    num_cached_first: int = 0
    room: int = 0
    block_ids: list[int] = field(default_factory=list)
    piece: Piece | None = None
    num_indexed: int = 0
    num_started: int = 0
    num_preempted: int = 0
    num_lost: int = 0
    num_swapped: int = 0
    first_token_s: float | None = None
    finished_s: float | None = None

    @classmethod
    def arrived(
        cls, request: Request, order: int, now_s: float, max_seq_len: int, content: Content | None
    ) -> ServedRequest:
        """Returns a request that waits with its prompt, and ends at `max_seq_len` tokens at most.

        Raises:
            SequenceTooLong: its prompt leaves no room for an answer.
            TypeError, ValueError: a length is not a whole number of at least 1.
        """
        prompt_tokens, limit = request.prompt_tokens, max_seq_len
        whole_number("prompt_tokens", prompt_tokens)
        whole_number("output_tokens", request.output_tokens)
        if prompt_tokens >= max_seq_len:
            raise SequenceTooLong(
                f"request {request.request_id} has a prompt of {prompt_tokens} tokens,"
                f" max_seq_len {max_seq_len} leaves no room for an answer"
            )
        if request.max_new_tokens is not None:
            whole_number("max_new_tokens", request.max_new_tokens)
            limit = min(prompt_tokens + request.max_new_tokens, max_seq_len)
        stop_at = min(prompt_tokens + request.output_tokens, limit)
        return cls(request, order, now_s, limit, stop_at, content, num_tokens=prompt_tokens)

    @property
    def num_outputs(self) -> int:
        """Output tokens generated so far."""
        return self.num_tokens - self.request.prompt_tokens

    @property
    def max_outputs(self) -> int:
        """The most output tokens it may generate."""
        return self.limit - self.request.prompt_tokens
