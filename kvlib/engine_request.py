"""A request to an engine as its client holds it: tokens so far, how it ended, what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import closing
from math import inf
from typing import Any, Protocol

from kvlib.engine_refusals import require_token
from kvlib.request import Request
from kvlib.request_cost import Cost
from kvlib.served import ServedRequest


class Steps(Protocol):
    """What a request asks of its engine."""

    def step(self) -> object:
        """Runs one step."""

    def end(self, request: EngineRequest, reason: str) -> object:
        """Ends a request and frees all it holds."""


class EngineRequest:
    """One request, or one of its samples.

    Iterating gives each token as soon as it is there and runs the engine meanwhile; so does
    `async for`, giving way to other tasks between steps. Whoever leaves the loop early cancels the
    request; an event loop notices a `break` a moment later. Where it ended with an error, the loop
    raises that.

    Attributes:
        prompt: its token ids.
        tokens: what it has got so far; the stop token, if one ended it, is the last.
        token_s: when each of them was there.
        finish_reason: `length`, `stop`, `cancelled`, `deadline` or `error`; None while it goes on.
        error: the exception that ended it.
        samples: all samples of the request, this one included.
        submitted_s: when it came.
        deadline_s: when it is given up; infinite for never.
        finished_s: when it ended.
    """

    def __init__(
        self,
        engine: Steps,
        prompt: Sequence[int],
        max_new_tokens: int,
        choose: Callable[[Any], int],
        stop_tokens: frozenset[int],
        now_s: float,
        deadline_s: float | None,
        tenant: str = "",
        priority: int = 0,
    ) -> None:
        self.prompt, self.max_new_tokens = list(prompt), max_new_tokens
        self.choose, self.stop_tokens = choose, stop_tokens
        self.tenant, self.priority = tenant, priority
        self.tokens: list[int] = []
        self.token_s: list[float] = []
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.samples: tuple[EngineRequest, ...] = (self,)
        self.submitted_s = now_s
        self.deadline_s = inf if deadline_s is None else now_s + deadline_s
        self.started_s: float | None = None
        self.finished_s: float | None = None
        self.job: ServedRequest | None = None
        self._engine, self._drawn = engine, None
        self._computed = self._again = self._reached = self._swapped = 0

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None

    @property
    def cost(self) -> Cost:
        """What it has cost so far."""
        job, made = self.job, len(self.tokens)
        since = self.submitted_s
        tpot_s = (self.token_s[-1] - self.token_s[0]) / (made - 1) if made > 1 else None
        return Cost(
            len(self.prompt),
            job.num_cached_first if job else len(self.prompt) * (made > 0),
            self._computed,
            self._again,
            self._swapped,
            made,
            job.num_preempted if job else 0,
            None if self.started_s is None else self.started_s - since,
            self.token_s[0] - since if made else None,
            tpot_s,
        )

    @property
    def unborn(self) -> list[EngineRequest]:
        """Samples that have no memory yet, since they begin behind this one's prompt."""
        if self is not self.samples[0]:
            return []
        return [each for each in self.samples[1:] if each.job is None and not each.done]

    def cancel(self) -> None:
        """Ends it now, with its samples that have not begun, and frees all they hold.

        Without effect if it has ended.
        """
        self._engine.end(self, "cancelled")

    def known(self, first: int, end: int) -> list[int]:
        """Returns its tokens, prompt and output, at the positions `[first, end)`."""
        outside = len(self.prompt)
        return self.prompt[first:end] + self.tokens[max(0, first - outside) : max(0, end - outside)]

    def next_tokens(self, num_tokens: int) -> list[int]:
        """Returns the tokens that are computed next."""
        first = self.job.num_computed
        return self.known(first, first + num_tokens)

    def asked(self, request_id: int) -> Request:
        """Returns what is still to be served of it, as a scheduler is asked for it."""
        left = self.max_new_tokens - len(self.tokens)
        known = len(self.prompt) + len(self.tokens)
        owner = {"tenant": self.tenant, "priority": self.priority}
        return Request(request_id, None, known, left, max_new_tokens=left, **owner)

    def computed(self, num_tokens: int, began_s: float) -> bool:
        """Notes what a step computes, before it is reported; answers whether a token is due."""
        if self.done:
            return False
        first = self.job.num_computed
        if self.started_s is None:
            self.started_s = began_s
        self._computed += num_tokens
        self._again += max(0, min(first + num_tokens, self._reached) - first)
        self._reached = max(self._reached, first + num_tokens)
        return first + num_tokens == self.job.num_tokens

    def draw(self, logits: Any, vocab_size: int) -> None:
        """Chooses its next token; where a step is taken again after that, it stays chosen.

        Raises:
            Exception: whatever the rule raises, or `require_token` of what it returns.
        """
        if self._drawn is None:
            token = self.choose(logits)
            require_token(token, vocab_size)
            self._drawn = token

    def receive(self, now_s: float) -> int:
        """Adds the token that was drawn to the answer, and returns it."""
        token, self._drawn = self._drawn, None
        self.tokens.append(token)
        self.token_s.append(now_s)
        return token

    def swapped(self, num_tokens: int) -> None:
        """Notes that so many of its tokens were copied to the host."""
        self._swapped += num_tokens

    def __iter__(self) -> Iterator[int]:
        with closing(self._tokens_and_steps()) as each:
            yield from (token for token in each if token is not None)

    async def __aiter__(self) -> AsyncIterator[int]:
        with closing(self._tokens_and_steps()) as each:
            for token in each:
                if token is None:
                    await asyncio.sleep(0)
                else:
                    yield token

    def _tokens_and_steps(self) -> Generator[int | None, None, None]:
        """Gives each token, and None for a step that the engine has run meanwhile."""
        given = 0
        try:
            while given < len(self.tokens) or not self.done:
                if given < len(self.tokens):
                    given += 1
                    yield self.tokens[given - 1]
                else:
                    self._engine.step()
                    yield None
        finally:
            self.cancel()
        if self.error is not None:
            raise self.error
