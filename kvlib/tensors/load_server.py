"""The engine as a server under load, in real time or in virtual."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from kvlib.engine_refusals import EngineFull
from kvlib.engine_request import EngineRequest
from kvlib.load_test import Progress
from kvlib.plan import SequenceTooLong
from kvlib.request import Request
from kvlib.simulated_server import VirtualTime
from kvlib.tensors.engine import Engine


def _prompt_of(request: Request, vocab_size: int) -> list[int]:
    """Returns a prompt of the request's length: its own token ids, else seeded ones.

    Equal requests give equal prompts. Two without token ids share no prefix but by chance: every
    prompt is drawn from a stream of its own.

    Example:
        >>> _prompt_of(Request(0, None, 2, 1, token_ids=(5, 6, 7)), 10)
        [5, 6]
        >>> _prompt_of(Request(1, None, 3, 1), 10) == _prompt_of(Request(1, 9.0, 3, 1), 10)
        True
    """
    if request.token_ids:
        return list(request.token_ids[: request.prompt_tokens])
    random = Random(f"prompt/{request.request_id}/{request.prompt_tokens}")
    return [int(random.random() * vocab_size) for _ in range(request.prompt_tokens)]


class EngineServer:
    """An engine for `load_test`: it generates as many tokens as each request says, greedily.

    The load generator runs in the engine's thread, between steps. That is why times count from when
    a request was due: what comes during a step is sent after it.

    Args:
        engine: with nothing to do.
        virtual: the time that the engine runs in, made with `clock=virtual.now` and
            `on_step=virtual.pass_step`; None is real time.
        sleep: waits for so many seconds of real time.

    Raises:
        ValueError: the engine's clock is another virtual time than `virtual`: waiting for it would
            never end.
    """

    def __init__(
        self,
        engine: Engine,
        virtual: VirtualTime | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        clock = getattr(engine.clock, "__self__", None)
        if (clock if isinstance(clock, VirtualTime) else None) is not virtual:
            raise ValueError("virtual must be the VirtualTime whose now() is the engine's clock")
        self.engine, self._virtual, self._sleep = engine, virtual, sleep
        self._open: dict[EngineRequest, bool] = {}  # whether it was told of a first token

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return self.engine.has_work

    def now(self) -> float:
        """Returns the engine's time."""
        return self.engine.clock()

    def wait_until(self, time_s: float) -> None:
        """Sleeps until a moment, or lets virtual time pass."""
        if self._virtual is not None:
            self._virtual.wait_until(time_s)
        while (left := time_s - self.now()) > 0:
            self._sleep(left)

    def send(self, request: Request) -> EngineRequest | None:
        """Submits a request; None if the engine is full, or could never serve it."""
        prompt = _prompt_of(request, self.engine.model.config.vocab_size)
        try:
            ticket = self.engine.submit(prompt, request.output_tokens, tenant=request.tenant)
        except (EngineFull, SequenceTooLong):
            return None
        self._open[ticket] = False
        return ticket

    def step(self) -> list[EngineRequest]:
        """Runs one step of the engine; returns who has a first token or has ended since the last.

        That includes who was cancelled between steps, of whom the engine's own step says nothing.
        """
        self.engine.step()
        known = self._open.items()
        told = [each for each, begun in known if each.done or (each.tokens and not begun)]
        for each in told:
            self._open[each] = True
            if each.done:
                del self._open[each]
        return told

    def progress(self, ticket: EngineRequest) -> Progress:
        """Returns how far a request is; cancelled, too late or broken is failed."""
        failed = ticket.done and ticket.finish_reason != "length"
        return Progress(len(ticket.tokens), ticket.done, ticket.cost.num_preempted, failed)
