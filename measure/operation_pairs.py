"""Whole random runs of two pools of instances: prompts are computed here, answers there."""

from __future__ import annotations

from typing import Any

from kvlib.disaggregated_run import DisaggregatedRun
from kvlib.disaggregation import decode_instance, prefill_instance
from kvlib.hash_index import HashIndex
from kvlib.preemption import SwapSpace
from kvlib.pulling import Instance
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.router import LeastLoaded, PrefixAffinity, RoundRobin, TwoChoices
from kvlib.scheduled_step import Step
from kvlib.two_pools import TwoPools
from operation_steps import Subject

ROUTERS = (LeastLoaded, RoundRobin, lambda: TwoChoices(1), PrefixAffinity)


class Pools(Subject):
    """Whole runs of prefill and decode instances; instances are lost, clocks fail."""

    rules = ("_serve",)
    share = 0.02
    partial = frozenset({"_serve"})

    def build(self) -> None:
        self.pools: TwoPools | None = None

    def state(self) -> Any:
        return None

    def check(self) -> None:
        if self.pools is not None:
            self.pools.check()

    def seconds(self, step: Step) -> float:
        """Is the clock of all instances: now and then everything is checked, or it fails."""
        self.faults.here()
        if self.chance(0.2):
            self.pools.check()
        return 1.0 + step.num_tokens / 8

    def _instance(self, scheduler: Any, pool: str) -> Instance:
        def content(request: Request) -> Any:
            return content_of(request, 2) if pool == "prefill" else None

        return Instance(scheduler, self, content, pool)

    def _serve(self) -> None:
        choice, made = self.random.choice, self.random.randint
        index = choice([None, HashIndex, RadixTree])
        swap = choice([None, 30])
        sizes = choice([9, 20]), choice([12, 30])
        prefill = [prefill_instance(sizes[0], 2, index) for _ in range(made(1, 2))]
        decode = [
            decode_instance(sizes[1], 2, max_seq_len=20, swap=swap and SwapSpace(swap))
            for _ in range(made(1, 2))
        ]
        self.pools = TwoPools(
            [self._instance(each, "prefill") for each in prefill],
            [self._instance(each, "decode") for each in decode],
            (choice(ROUTERS)(), choice(ROUTERS)()),
            lambda tokens: (tokens, tokens * choice([0.0, 0.1, 2.0])),
            DisaggregatedRun(None, timed=True, num_prefill=len(prefill), num_decode=len(decode)),
        )
        arrivals = sorted(made(0, 20) / 2 for _ in range(made(1, 6)))
        requests = [
            Request(i, at, made(1, 14), made(1, 9), token_ids=(*range(12), 50 + i, 60 + i))
            for i, at in enumerate(arrivals)
        ]
        lost = [(float(made(0, 15)), which) for which in range(len(prefill)) if self.chance(0.3)]
        self.pools.run(requests, lost)
        result = self.pools.result
        assert not result.unfinished, f"{result.unfinished} requests are left"
        counted = result.finished + result.refused
        assert counted == result.num_requests == len(requests), f"{counted} of {len(requests)}"
        for each in (*prefill, *decode):
            assert not each.memory.num_held, "memory is held by nobody"


SUBJECTS = {"two pools": Pools}
