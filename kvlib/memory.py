"""What a scheduler asks of the memory that requests run in, whatever it is made of.

It asks three things: `start` a request with room for so many tokens, `grow` it, `stop` it. Which
tokens those are decides what is shared; where they lie is nobody's business but the memory's.
"""

from __future__ import annotations

from typing import Protocol

from kvlib.served import ServedRequest


class Memory(Protocol):
    """What a scheduler needs of a memory; sizes in tokens.

    Attributes:
        grows: whether a request can be given more as long as memory is free.
    """

    grows: bool

    @property
    def size(self) -> int:
        """All there is."""

    @property
    def most(self) -> int:
        """The most that one request could ever hold."""

    @property
    def num_free(self) -> int:
        """Free now, what is only kept in case it is wanted again included."""

    @property
    def num_held(self) -> int:
        """Held by running requests, each token's place counted once."""

    @property
    def num_kept(self) -> int:
        """Of what is free, what is kept in case it is wanted again."""

    def rounded(self, num_tokens: int) -> int:
        """Returns what is really held where `num_tokens` are asked for."""

    def cached_tokens(self, job: ServedRequest) -> int:
        """Returns how many leading tokens `start` would find computed."""

    def cost(self, job: ServedRequest, num_tokens: int) -> int:
        """Returns how much of `num_free` it takes to start the request."""

    def start(self, job: ServedRequest, num_tokens: int) -> None:
        """Gives a request room for `num_tokens` tokens; sets what it holds and what is computed.

        Raises:
            OutOfBlocks: there is too little. Nothing changes.
        """

    def grow(self, job: ServedRequest, num_tokens: int) -> None:
        """Makes room for `num_tokens` tokens in all.

        Raises:
            OutOfBlocks: there is too little. Nothing changes.
        """

    def index(self, job: ServedRequest) -> None:
        """Notes that further tokens of the request are computed and may be shared."""

    def stop(self, job: ServedRequest) -> None:
        """Takes everything back; nothing of the request is computed any more."""

    def stranded(self, num_tokens: int) -> int:
        """Returns how much is free and yet of no use to a request for `num_tokens` tokens."""
