"""The capstone's clock: a model that charges each of its calls, and looks at its caches.

Time is not the machine's. Each call costs what its bytes and operations would cost a stated model
on a stated card, so that the same engine has the same score everywhere. The engine gets the model
itself; whatever it computes with it is charged, also what it computes in secret.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from kvlib import capstone as rules
from kvlib.capstone import BLOCK_SIZE, NUM_BLOCKS
from kvlib.catalog import gpu
from kvlib.catalog import model as published
from kvlib.clock import RooflineClock
from kvlib.plan import StepPlan
from kvlib.scheduled_step import Step
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig
from kvlib.tensors.step import DevicePlan

CONFIG = LlamaConfig(
    rules.VOCAB, 48, 64, 2, 4, 2, 12, max_position_embeddings=512, tie_word_embeddings=False
)
OVERHEAD_S = 0.002
SPARE_TOKENS = 64  # a null block for padding holds nobody's tokens


@dataclass(frozen=True)
class Charge:
    """A call of the model as a clock sees a step."""

    plan: StepPlan
    num_swapped: int = 0
    work: bool = True

    @property
    def num_tokens(self) -> int:
        """Tokens computed, padding left out."""
        return self.plan.query_start[-1]

    def attention(self) -> tuple[int, int]:
        """Returns the keys read, each sequence's once, and the query-key pairs scored."""
        keys = pairs = 0
        starts = self.plan.query_start
        for s, end in enumerate(self.plan.context_lens):
            if new := starts[s + 1] - starts[s]:
                keys += end
                pairs += new * end - new * (new - 1) // 2
        return keys, pairs


@dataclass
class Meter:
    """The judge's clock, and what it has seen.

    Attributes:
        now_s: the time.
        forwarded: tokens that passed the model.
        steps: calls of it.
        fault: which rule of memory was broken, or an empty string.
    """

    now_s: float = 0.0
    forwarded: int = 0
    steps: int = 0
    fault: str = ""
    _clock: RooflineClock = field(
        default_factory=lambda: RooflineClock(
            gpu(rules.CARD),
            published(rules.MODEL),
            weight_dtype="float16",
            kv_dtype="float16",
            overhead_s=OVERHEAD_S,
        )
    )
    _caches: weakref.WeakSet = field(default_factory=weakref.WeakSet)

    def charge(self, held: Any, plan: DevicePlan) -> None:
        """Adds the time of a call, and notes a fault if all caches together are too large.

        It raises nothing: an engine may well take an exception of its model for a request's error.
        """
        charge = Charge(plan.host)
        self.now_s += self._clock.seconds(cast(Step, charge))
        self.forwarded += charge.num_tokens
        self.steps += 1
        self._caches.add(held)
        per_token = CONFIG.num_layers * 2 * CONFIG.num_kv_heads * CONFIG.head_dim * 4
        if not hasattr(held, "nbytes"):
            kind = type(held).__name__
            self.fault = self.fault or f"a cache should say its `nbytes`, yours, {kind}, does not"
            return
        used = sum(c.nbytes + getattr(c, "host_nbytes", 0) for c in self._caches)
        allowed = (NUM_BLOCKS * BLOCK_SIZE + SPARE_TOKENS) * per_token
        if used > allowed:
            self.fault = self.fault or (
                f"keys and values should take {NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens,"
                f" {allowed:,} bytes with what is spare; yours take {used:,}"
            )


def timed_model(meter: Meter) -> Llama:
    """Returns the model that an engine is given: each call is charged to the meter.

    It has one method more, `now()`, the judge's time, for deadlines.
    """

    class Timed(Llama):
        def forward(
            self, tokens: Tensor, cache: Any, plan: DevicePlan, *, all_logits: bool = False
        ) -> Tensor:
            meter.charge(cache, plan)
            return super().forward(tokens, cache, plan, all_logits=all_logits)

        def now(self) -> float:
            return meter.now_s

    return Timed.random(CONFIG, rules.MODEL_SEED)
