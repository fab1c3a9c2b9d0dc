"""How the next token is chosen from the logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits.

    Attributes:
        temperature: 0 takes the best token (greedy); above 0 divides the logits.
        top_k: sample among the k best tokens only; None for all.
        top_p: sample among the fewest tokens that hold this much probability; 1 for all.
        seed: equal seeds draw equal tokens from equal logits.

    Raises:
        ValueError: a value out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is 0 or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is at least 1, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p lies in (0, 1], got {self.top_p}")

    def chooser(self) -> Callable[[Tensor], int]:
        """Returns a function from logits [vocab_size] (on the CPU) to a token id."""
        if self.temperature == 0:
            return lambda logits: int(logits.argmax())
        generator = torch.Generator().manual_seed(self.seed)
        return lambda logits: self._draw(logits, generator)

    def _draw(self, logits: Tensor, generator: torch.Generator) -> int:
        ranked, order = torch.sort(logits.float() / self.temperature, descending=True)
        probabilities = torch.softmax(ranked[: self.top_k], dim=0)
        before = probabilities.cumsum(0) - probabilities
        kept = torch.where(before < self.top_p, probabilities, 0.0)
        return int(order[torch.multinomial(kept, 1, generator=generator)])
