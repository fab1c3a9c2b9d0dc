"""Scores the capstone's engines, and those of the page's picture: python measure/capstone.py.

Nothing is timed: the judge's clock is computed, so the scores are the same on every machine. They
are stored since a reader's browser has no torch; a test computes some of them again.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product
from typing import Any

import torch

from kvlib import capstone as rules
from kvlib.admission import AdmitPrompt
from kvlib.capstone import Score
from kvlib.scheduled_step import StepLimits
from kvlib.tensors import capstone
from kvlib.tensors.engine import Engine
from kvlib.waiting import FirstComeLine, PriorityLine
from record import ROOT

CHUNKS, WATERMARKS = (64, 128, 256), (0.0, 0.1)


class GivesUp(Engine):
    """Cancels who has waited longer than the target for a first token."""

    def step(self) -> list[Any]:
        """Runs one step, without those for whom it comes too late."""
        for request in list(self.live.values()):
            if not request.tokens and self.clock() - request.submitted_s > rules.TTFT_S:
                request.cancel()
        return super().step()


class ShortFirst(Engine):
    """Gives the shortest prompt the lowest number."""

    def submit(self, prompt_ids: Any, max_new_tokens: int, **options: Any) -> Any:
        """Takes a request into the line."""
        return super().submit(prompt_ids, max_new_tokens, priority=len(prompt_ids), **options)


class Both(GivesUp, ShortFirst):
    """Both."""


def variant(chunk: int, watermark: float, gives_up: bool, short_first: bool) -> Score:
    """Returns the score of an engine of the picture."""
    kinds = {(False, False): Engine, (True, False): GivesUp, (False, True): ShortFirst}

    def build(model: Any, num_blocks: int) -> Engine:
        return kinds.get((gives_up, short_first), Both)(
            model,
            num_blocks,
            limits=StepLimits(max_tokens=chunk),
            admission=AdmitPrompt(watermark),
            waiting=PriorityLine() if short_first else FirstComeLine(),
            clock=model.now,
        )

    return capstone.judge("yours", build)


def main() -> None:
    """Writes `kvlib/data/capstone.json`."""
    torch.set_num_threads(1)
    yours = []
    for options in product(CHUNKS, WATERMARKS, (False, True), (False, True)):
        names = ("chunk", "watermark", "gives_up", "short_first")
        yours.append(dict(zip(names, options, strict=True)) | asdict(variant(*options)))
    data = {"references": [asdict(each) for each in capstone.references()], "yours": yours}
    target = ROOT / "kvlib" / "data" / "capstone.json"
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
