"""The capstone: serve one trace in one memory, with exact answers, in time; the score is goodput.

A reader writes a file with `build(model, num_blocks) -> engine`, and ::

    python -m kvlib.capstone my_engine.py

answers how many requests a second kept the target, beside four engines to beat. This half holds the
rules: the requests, the target and the sheet of a run; what a file may not ask for is in
`kvlib.capstone_fair`. The half with tensors, `kvlib.tensors.capstone`, has the model, the engines
and the judge.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

BLOCK_SIZE, NUM_BLOCKS = 16, 64
VOCAB, STOP = 96, frozenset(range(4))
NUM_REQUESTS, MAX_NEW_TOKENS = 64, 48
TTFT_S, GAP_S = 0.6, 0.1
PASS_TIMES = 1.25  # a step size that nobody chose is worth a tenth
MOST_S, LIMIT_S = 60.0, 180.0  # of the judge's clock, and of the one on the wall
TRACE_SEED, MODEL_SEED = 2, 8
MODEL, CARD = "Llama-3-8B", "V100 SXM2 32GB"


class Ask(NamedTuple):
    """One request of the trace, as far as a server may know it.

    Attributes:
        arrival_s: seconds after the first.
        prompt: token ids.
    """

    arrival_s: float
    prompt: tuple[int, ...]


class Refused(Exception):
    """The engine broke a rule; the message says which, what it should be, and what it was."""


def trace(seed: int = TRACE_SEED) -> tuple[Ask, ...]:
    """Returns the requests: four beginnings that many share, tails of their own, some long texts.

    Args:
        seed: equal seeds give equal requests on every host.

    Example:
        >>> trace()[0].arrival_s, len(trace()), trace() == trace(2), trace() == trace(3)
        (0.0, 64, True, False)
    """
    random = Random(f"capstone/{seed}")

    def text(num_tokens: int) -> tuple[int, ...]:
        return tuple(
            len(STOP) + int(random.random() * (VOCAB - len(STOP))) for _ in range(num_tokens)
        )

    shared = [text(n) for n in (96, 96, 144, 192)]
    asks, now_s = [], 0.0
    for i in range(NUM_REQUESTS):
        if i % 8 == 7:  # a text that nobody else sends
            prompt = text(256 + int(random.random() * 128))
        else:
            prompt = shared[int(4 * random.random() ** 1.5)] + text(4 + int(random.random() * 28))
        asks.append(Ask(now_s, prompt))
        # Two requests out of three come close behind one another.
        now_s += (0.016 if random.random() < 0.67 else 0.2) * (0.5 + random.random())
    return tuple(asks)


@dataclass(frozen=True)
class Score:
    """What a run has come to.

    Attributes:
        name: of the engine.
        good: requests whose first token came in time and that never stood still for long.
        finished: requests that got their whole answer.
        seconds: from the first arrival to the end of the last request, by the judge's clock.
        late: requests whose first token came too late, or never.
        stalled: requests that began in time and stood still for too long between two tokens.
        forwarded: tokens that passed the model.
        steps: that called the model.
    """

    name: str
    good: int
    finished: int
    seconds: float
    late: int
    stalled: int
    forwarded: int
    steps: int

    @property
    def goodput(self) -> float:
        """Good requests a second."""
        return self.good / self.seconds if self.seconds else 0.0


def graded(
    name: str,
    token_s: Sequence[Sequence[float]],
    done: Sequence[bool],
    asks: Sequence[Ask],
    seconds: float,
    work: tuple[int, int],
) -> Score:
    """Returns the score of a run from when each request's tokens came.

    Args:
        name: of the engine.
        token_s: for each request the times of its tokens.
        done: for each whether it got its whole answer.
        asks: the requests.
        seconds: when the last one ended.
        work: tokens that passed the model, and steps.

    Example:
        In time, then 0.2 s of silence before the third token; the second request never began:

        >>> asks = (Ask(0.0, (5,)), Ask(1.0, (6,)))
        >>> score = graded("x", [[0.2, 0.22, 0.42], []], [True, False], asks, 2.0, (9, 3))
        >>> score.good, score.late, score.stalled, score.goodput
        (0, 1, 1, 0.0)
    """
    late = stalled = good = 0
    for times, whole, ask in zip(token_s, done, asks, strict=True):
        if not whole or times[0] - ask.arrival_s > TTFT_S:
            late += 1
        elif any(b - a > GAP_S for a, b in pairwise(times)):
            stalled += 1
        else:
            good += 1
    return Score(name, good, sum(done), seconds, late, stalled, *work)


def leaderboard(scores: Sequence[Score]) -> str:
    """Returns the table, the best engine first; of equal ones the first given."""
    rows = sorted(scores, key=lambda score: -score.goodput)
    heads = ("good", "late", "stalled", "finished", "tokens")
    lines = [f"{'engine':25}{'goodput':>8}" + "".join(f"{head:>9}" for head in heads)]
    for s in rows:
        counts = (s.good, s.late, s.stalled, s.finished, s.forwarded)
        lines.append(f"{s.name[:24]:25}{s.goodput:8.2f}" + "".join(f"{n:9,}" for n in counts))
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Grades the file that is named, or the four references alone; returns the exit status."""
    judge, graders = map(import_module, ("kvlib.tensors.capstone", "kvlib.tensors.capstone_file"))
    if len(arguments) > 1 or (arguments and not Path(arguments[0]).is_file()):
        print("python -m kvlib.capstone [my_engine.py]: one file with build(model, num_blocks)")
        return 2
    mine = []
    if arguments:
        try:
            mine = [graders.grade_apart(Path(arguments[0]))]
        except Refused as error:
            print(f"refused: {error}")
            return 1
    references = judge.references()
    print(leaderboard([*references, *mine]))
    if not mine:
        return 0
    best = max(score.goodput for score in references)
    passed = mine[0].goodput >= PASS_TIMES * best
    asked = f"to pass: {PASS_TIMES * best:.2f}, {PASS_TIMES} times the best of the four"
    print("\nyour engine beats all four" if passed else f"\n{asked}")
    return 0 if passed else 1


if __name__ == "__main__":
    # As the module that the judge imports: `Refused` must be one class.
    sys.exit(import_module("kvlib.capstone").main(sys.argv[1:]))
