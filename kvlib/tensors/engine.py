"""A small engine that really serves: requests come and go while it runs.

A step: the scheduler chooses who computes how much and gives memory for it; bytes are moved; the
model runs once over all new tokens; whoever has no token left to compute gets a new one. It is a
teaching engine: one model, one device, one thread.

Source: the loop is that of vLLM (Kwon et al., SOSP 2023) and of Orca (Yu et al., OSDI 2022).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from traceback import clear_frames

import torch
from torch import Tensor

from kvlib.admission import Admission
from kvlib.engine_desk import RequestDesk, Work, one_at_a_time
from kvlib.engine_refusals import require_owner, require_request
from kvlib.engine_request import EngineRequest
from kvlib.preemption import Victim, newest
from kvlib.scheduled_step import Step, StepLimits
from kvlib.tensors.engine_cache import ScheduledKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.sampling import Sampling
from kvlib.waiting import WaitingLine


class Engine(RequestDesk):
    """Serves requests on one model, in blocks that they share and take from each other.

    Args:
        model: the model.
        num_blocks: blocks of keys and values.
        block_size: tokens of each.
        limits: tokens and requests of one step; whether prompts are cut into chunks.
        admission: who may begin; by default whoever's prompt fits.
        victim: who loses memory when a running request cannot grow.
        prefix_caching: whether requests of one tenant share blocks where their texts begin alike.
        swap_tokens: host memory for victims; what does not fit there is computed again.
        max_waiting: requests that may wait.
        max_seq_len: the most tokens of one request; by default what the model and memory hold.
        way: how to attend; see `PagedKVCache`.
        waiting: the line; first come, first served by default.
        clock: seconds.
        on_step: told of each step before it runs.

    Raises:
        TypeError, ValueError: a number is not a whole number in its range.
    """

    def __init__(
        self,
        model: Llama,
        num_blocks: int,
        block_size: int = 16,
        *,
        limits: StepLimits | None = None,
        admission: Admission | None = None,
        victim: Victim = newest,
        prefix_caching: bool = True,
        swap_tokens: int = 0,
        max_waiting: int = 256,
        max_seq_len: int | None = None,
        way: str | None = None,
        waiting: WaitingLine | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_step: Callable[[Step], object] | None = None,
    ) -> None:
        super().__init__(
            num_blocks,
            block_size,
            model.config.max_position_embeddings,
            max_seq_len=max_seq_len,
            prefix_caching=prefix_caching,
            swap_tokens=swap_tokens,
            max_waiting=max_waiting,
            clock=clock,
            limits=limits,
            admission=admission,
            victim=victim,
            waiting=waiting,
        )
        where = {"dtype": model.dtype, "device": model.device}
        self.cache = ScheduledKVCache(model.kv_shape, self.memory, way=way, **where)
        self.model, self.counters, self.on_step = model, self.cache.counters, on_step

    def submit(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        *,
        sampling: Sampling | None = None,
        num_samples: int = 1,
        stop_tokens: Iterable[int] = (),
        deadline_s: float | None = None,
        tenant: str = "",
        priority: int = 0,
    ) -> EngineRequest:
        """Takes a request into the line; it goes on whenever the engine steps.

        Args:
            prompt_ids: token ids, at least one.
            max_new_tokens: the most output tokens.
            sampling: how to choose, greedy by default.
            num_samples: answers; they share the prompt's blocks, and the seed of each is one more.
            stop_tokens: token ids that end an answer.
            deadline_s: seconds after which it is given up.
            tenant: whose it is; tenants share no blocks.
            priority: lower runs first, in a line that looks at it.

        Raises:
            EngineFull: too many requests wait.
            SequenceTooLong: it could never be served.
            TypeError, ValueError: a value makes no sense. In each case nothing changes.
        """
        prompt, sampling = list(prompt_ids), sampling or Sampling()
        vocab_size = self.model.config.vocab_size
        require_request(prompt, max_new_tokens, num_samples, deadline_s, vocab_size)
        stop_tokens = require_owner(tenant, priority, stop_tokens)
        seeded = [replace(sampling, seed=sampling.seed + i) for i in range(num_samples)]
        rest = (stop_tokens, self.clock(), deadline_s, tenant, priority)
        made = (EngineRequest(self, prompt, max_new_tokens, s.chooser(), *rest) for s in seeded)
        return self.take(tuple(made))

    @one_at_a_time
    def step(self) -> list[EngineRequest]:
        """Runs one step; returns the requests that ended with it."""
        began_s = self.clock()
        ended = self.end_late(began_s)
        if not self.has_work:
            return ended
        step = self.scheduler.schedule()
        for move, failed in self.cache.carry_out(self.memory.moves):
            ended += self.moved(move, failed)
        if self.on_step:
            self.on_step(step)
        work = [(self.live[job], n) for job, n in step.work if job.room]
        due: list[tuple[EngineRequest, Tensor]] = []
        for (request, n), logits in zip(work, self._forward(work), strict=True):
            if isinstance(logits, Exception):
                ended += self.end(request, "error", logits)
            elif request.computed(n, began_s):
                due += [(each, logits) for each in (request, *request.unborn)]
        ended += self._draw(due)
        now_s = self.clock()
        self.scheduler.report(step, now_s)
        return ended + self.deliver([each for each, _ in due], now_s)

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.has_work:
            self.step()

    async def serve(self) -> None:
        """Steps until nothing is left to do, giving way to other tasks between steps.

        It does not wait for more: whoever comes later iterates, or calls it again.
        """
        while self.has_work:
            self.step()
            await asyncio.sleep(0)

    def check(self) -> None:
        """Proves the invariants of desk, memory and cache; raises `AssertionError`."""
        super().check()
        self.cache.check()

    def _forward(self, work: Sequence[Work]) -> list[Tensor | Exception]:
        """Returns last logits; of a batch that fails, each runs alone."""
        if not work:
            return []
        try:
            new = {each.job: each.next_tokens(n) for each, n in work}
            tokens = [*chain.from_iterable(new.values())]
            with self.cache.step(new) as plan:
                packed = torch.tensor(tokens, device=self.cache.device)
                return list(self.model(packed, self.cache, plan).cpu())
        except Exception as error:
            clear_frames(error.__traceback__)  # frees the tensors they hold
            if len(work) == 1:
                return [error]
        return [self._forward([one])[0] for one in work]

    def _draw(self, due: Sequence[tuple[EngineRequest, Tensor]]) -> list[EngineRequest]:
        """Draws a token for each, by its own rule; returns those whose rule fails."""
        ended: list[EngineRequest] = []
        for request, logits in due:
            try:
                if not request.done:
                    request.draw(logits, self.model.config.vocab_size)
            except Exception as error:
                ended += self.end(request, "error", error)
        return ended
