"""What a request is, and a workload of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class ContentPiece(NamedTuple):
    """A part of a prompt whose content is known by a number: equal numbers, equal tokens.

    Attributes:
        kind: of RAGPulse, one of `sys`, `passage`, `history`, `web`, `user`.
        content_id: says what it is, not where: the same piece may stand anywhere in a prompt.
        num_tokens: its length.
    """

    kind: str
    content_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when it arrives, how much it brings and how much it will generate.

    What it says is not shown when it is printed.

    Attributes:
        request_id: its place in the workload, from 0.
        arrival_s: seconds after the first request, or `None` where no times are known.
        prompt_tokens: at least 1.
        output_tokens: at least 1; a server learns it only when the request ends.
        block_ids: of the Mooncake traces, one id for each 512 prompt tokens; equal ids mean equal
            tokens from the start of the prompt to the end of that block.
        token_ids: of made-up conversations, the prompt's tokens and then the output's.
        conversation_id: of made-up conversations.
        turn: its place in its conversation, from 0.
        session_id: of RAGPulse, the user's session that it belongs to, from 0.
        pieces: of RAGPulse, what its prompt is made of, in the order we assume; 6 to 12 tokens of
            the prompt belong to no piece.
        max_new_tokens: the most output tokens its client allows; None leaves it to the server.
        tenant: whose request it is, where several share a server.
        priority: lower runs first, where the server looks at it.
    """

    request_id: int
    arrival_s: float | None
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = field(default=(), repr=False)
    token_ids: tuple[int, ...] = field(default=(), repr=False)
    conversation_id: int | None = None
    turn: int | None = None
    session_id: int | None = None
    pieces: tuple[ContentPiece, ...] = field(default=(), repr=False)
    max_new_tokens: int | None = None
    tenant: str = ""
    priority: int = 0


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, with what they are and whom to thank for them.

    Attributes:
        name: short, for a legend; a sample's name says that it is one.
        description: one sentence that says what the requests are and what they are not.
        source: attribution and licence to print beside a figure; empty for made-up requests.
        requests: in order of arrival.
    """

    name: str
    description: str
    source: str
    requests: tuple[Request, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)
