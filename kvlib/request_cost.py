"""What one request has cost an engine, in one line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What one request has cost so far.

    Attributes:
        prompt_tokens: its prompt.
        cached_tokens: of those, found in memory when it first began; a sample finds all of them
            as long as the first one runs.
        computed_tokens: forwarded for it, those computed again included.
        recomputed_tokens: of those, computed again since memory was taken away.
        swapped_tokens: copied to the host.
        output_tokens: it has got.
        num_preempted: how often it lost its memory.
        waited_s: until it first was part of a step; None before that.
        ttft_s: until its first token; None before that.
        tpot_s: for each token after the first, on average; None without one.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    swapped_tokens: int
    output_tokens: int
    num_preempted: int
    waited_s: float | None
    ttft_s: float | None
    tpot_s: float | None

    @property
    def counts(self) -> str:
        """The line without times: the same on every machine."""
        return (
            f"prompt {self.prompt_tokens}, cached {self.cached_tokens},"
            f" computed {self.computed_tokens}, recomputed {self.recomputed_tokens},"
            f" swapped {self.swapped_tokens}, output {self.output_tokens},"
            f" preempted {self.num_preempted}"
        )

    def __str__(self) -> str:
        times = {"waited": self.waited_s, "TTFT": self.ttft_s, "TPOT": self.tpot_s}
        known = [f"{name} {s:.3g} s" for name, s in times.items() if s is not None]
        return ", ".join([self.counts, *known])
