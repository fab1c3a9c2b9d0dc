"""The capstone's judge: the right answers, the run, and four engines to beat.

The time it goes by is that of `kvlib.tensors.capstone_meter`: computed, and the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from kvlib import capstone as rules
from kvlib.admission import AdmitReserved
from kvlib.capstone import BLOCK_SIZE, MAX_NEW_TOKENS, NUM_BLOCKS, STOP, Ask, Refused, Score
from kvlib.engine_refusals import EngineFull
from kvlib.plan import SequenceTooLong
from kvlib.scheduled_step import StepLimits
from kvlib.tensors.capstone_meter import CONFIG, Meter, timed_model
from kvlib.tensors.engine import Engine
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache

Build = Callable[[Any, int], Any]
IDLE_S, MOST_IDLE = 0.001, 2000


@cache
def answers(seed: int = rules.TRACE_SEED) -> tuple[tuple[int, ...], ...]:
    """Returns what each request of a trace must be answered: alone, greedy, to the stop token."""
    model = Llama.random(CONFIG, rules.MODEL_SEED)
    found = []
    for ask in rules.trace(seed):
        alone = PagedKVCache(model.kv_shape, NUM_BLOCKS, BLOCK_SIZE)
        alone.add(0)
        new, out = list(ask.prompt), []
        while len(out) < MAX_NEW_TOKENS and not STOP.intersection(out[-1:]):
            with alone.step({0: new}) as plan:
                new = [int(model(torch.tensor(new), alone, plan)[0].argmax())]
            out += new
        found.append(tuple(out))
    return tuple(found)


def least_tokens(texts: Sequence[Sequence[int]]) -> int:
    """Returns how many tokens must pass a model at least: common beginnings once.

    Example:
        >>> least_tokens([(1, 2, 3), (1, 2, 4), (5,)])
        5
    """
    ordered = sorted(map(tuple, texts))
    total = len(ordered[0]) if ordered else 0
    for before, text in pairwise(ordered):
        pairs = zip(before, text, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(text)))
        total += len(text) - same
    return total


def judge(name: str, build: Build, seed: int = rules.TRACE_SEED) -> Score:
    """Serves the trace with an engine and returns its score.

    Args:
        name: for the table.
        build: called with a model and a number of blocks; returns an engine with `submit`, `step`
            and `has_work`, whose requests have `tokens` and `done`.
        seed: of the trace.

    Raises:
        Refused: wrong tokens, too much memory, tokens that did not pass the model, an engine that
            stands still or comes to no end, a request that ended with an error, or what `build`
            or `submit` returns is of no use. What the engine itself raises goes through.
    """
    asks, right, meter = rules.trace(seed), answers(seed), Meter()
    engine = build(timed_model(meter), NUM_BLOCKS)
    _require_engine(engine)
    handles: list[Any] = [None] * len(asks)
    token_s: list[list[float]] = [[] for _ in asks]
    upcoming = idle = 0
    while upcoming < len(asks) or engine.has_work:
        while upcoming < len(asks) and asks[upcoming].arrival_s <= meter.now_s:
            handles[upcoming] = _submitted(engine, asks[upcoming])
            upcoming += 1
        if not engine.has_work:
            meter.now_s = asks[upcoming].arrival_s if upcoming < len(asks) else meter.now_s
            continue
        before = meter.steps
        engine.step()
        if meter.fault:
            raise Refused(meter.fault)
        idle = 0 if meter.steps > before else idle + 1
        meter.now_s += IDLE_S if idle else 0.0
        if idle > MOST_IDLE:
            raise Refused(f"a step should call the model, yours made {idle} that did not")
        if meter.now_s > rules.MOST_S:
            raise Refused(
                f"all should be over after {rules.MOST_S:g} s of the judge's time; yours has work"
            )
        for at, (handle, times) in enumerate(zip(handles, token_s, strict=True)):
            if handle is not None and len(handle.tokens) > len(times):
                _require_right(at, handle.tokens, right[at], len(times))
                times += [meter.now_s] * (len(handle.tokens) - len(times))
    _require_no_error(handles)
    done = [len(times) == len(answer) for times, answer in zip(token_s, right, strict=True)]
    _require_work(meter, asks, right, done)
    return rules.graded(name, token_s, done, asks, meter.now_s, (meter.forwarded, meter.steps))


def _submitted(engine: Any, ask: Ask) -> Any:
    try:
        handle = engine.submit(list(ask.prompt), MAX_NEW_TOKENS, stop_tokens=STOP)
    except (EngineFull, SequenceTooLong):
        return None  # turned away: it got no answer, and that is all
    if not hasattr(handle, "tokens"):
        kind = type(handle).__name__
        raise Refused(f"submit should return a request with `tokens`, yours returned {kind}")
    return handle


def _require_engine(engine: Any) -> None:
    for name in ("submit", "step", "has_work"):
        if not hasattr(engine, name):
            kind = type(engine).__name__
            raise Refused(f"build should return an engine with `{name}`, yours returned {kind}")
    if callable(engine.has_work):
        raise Refused("has_work should be a property, true or false; yours is a method")


def _require_no_error(handles: Sequence[Any]) -> None:
    for at, handle in enumerate(handles):
        if isinstance(error := getattr(handle, "error", None), Exception):
            said = f"{type(error).__name__}: {error}"
            raise Refused(f"request {at} should be served or given up; it failed: {said}")


def _require_right(request: int, tokens: Sequence[int], answer: Sequence[int], first: int) -> None:
    for at in range(first, len(tokens)):
        if at >= len(answer) or tokens[at] != answer[at]:
            should = answer[at] if at < len(answer) else "no token"
            raise Refused(
                f"output token {at} of request {request} should be {should}, yours is {tokens[at]}"
            )


def _require_work(
    meter: Meter, asks: Sequence[Ask], right: Sequence[Sequence[int]], done: Sequence[bool]
) -> None:
    texts = [
        (*ask.prompt, *answer[:-1])
        for ask, answer, whole in zip(asks, right, done, strict=True)
        if whole
    ]
    least = least_tokens(texts)
    if meter.forwarded < least:
        raise Refused(
            f"at least {least:,} tokens should pass the model, yours forwarded {meter.forwarded:,}"
        )


WHOLE = StepLimits(max_tokens=512, chunked_prefill=False, prefill_first=True)
CHUNKS = StepLimits(max_tokens=128)
REFERENCES: dict[str, dict[str, Any]] = {
    "reserve maximum": {"limits": WHOLE, "prefix_caching": False, "admission": AdmitReserved()},
    "paged FCFS": {"limits": WHOLE, "prefix_caching": False},
    "paged + prefix": {"limits": WHOLE},
    "paged + prefix + chunks": {"limits": CHUNKS},
}


@cache
def references(seed: int = rules.TRACE_SEED) -> list[Score]:
    """Returns the scores of the four engines to beat."""
    return [reference(name, seed) for name in REFERENCES]


def reference(name: str, seed: int = rules.TRACE_SEED) -> Score:
    """Returns the score of one of the four engines to beat, by its name in `REFERENCES`."""
    return judge(name, _reference(REFERENCES[name]), seed)


def _reference(options: dict[str, Any]) -> Build:
    return lambda model, num_blocks: Engine(model, num_blocks, BLOCK_SIZE, **options)
