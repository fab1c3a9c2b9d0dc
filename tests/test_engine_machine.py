"""Whatever comes, fails or gives up, in any order: nothing is lost, nobody gets a wrong token."""

import random
from dataclasses import dataclass
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import small_config
from engine_cases import Fragile, Solo, Ticks, assert_empty, engine_of
from kvlib.admission import AdmitPrompt, AdmitReserved
from kvlib.engine_refusals import EngineFull
from kvlib.fair_line import FairLine
from kvlib.preemption import fewest_outputs, newest, oldest
from kvlib.scheduled_memory import Move
from kvlib.scheduled_step import StepLimits
from kvlib.tensors.llama import Llama
from kvlib.tensors.sampling import Sampling
from kvlib.waiting import FirstComeLine, PriorityLine

TEXTS = [
    [(7 * i + j * (j > shared)) % 96 for j in range(length)]
    for i in range(4)
    for shared, length in ((0, 1), (2, 5), (5, 9), (5, 12), (9, 12))
]
POISON = 96  # a token on which the model fails
LIMITS = [
    StepLimits(),
    StepLimits(max_tokens=5, max_running=3),
    StepLimits(max_tokens=13, chunked_prefill=False),
    StepLimits(max_tokens=9, prefill_first=True),
]


@dataclass(frozen=True)
class FailingDraw(Sampling):
    """Draws two tokens and fails."""

    def chooser(self):
        left = [1, 2]
        return lambda logits: left.pop()


@cache
def model_and_solo():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_q_heads": 4, "num_kv_heads": 2}
    config = small_config(**sizes, head_dim=4, tie_word_embeddings=False)
    model = Llama.random(config, seed=3)
    return model, Solo(model)


def rightly_ended(request, sampling):
    """Whether a request that ended got what it gets alone, as far as it came."""
    if POISON in request.prompt or isinstance(sampling, FailingDraw):
        return request.finish_reason != "stop"
    _, solo = model_and_solo()
    return solo.agrees(request, sampling=sampling, stop_tokens=tuple(request.stop_tokens))


class AnyOrder(RuleBasedStateMachine):
    """Requests come, go and fail while the engine steps."""

    @initialize(
        num_blocks=st.sampled_from([8, 11, 40]),
        swap_tokens=st.sampled_from([0, 9, 500]),
        limits=st.sampled_from(LIMITS),
        victim=st.sampled_from([newest, oldest, fewest_outputs]),
        line=st.sampled_from([FirstComeLine, PriorityLine, FairLine]),
        admission=st.sampled_from([AdmitPrompt, AdmitReserved, lambda: AdmitPrompt(0.2)]),
        prefix_caching=st.booleans(),
        late=st.booleans(),
    )
    def build(self, num_blocks, line, admission, late, **options):
        model, _ = model_and_solo()
        self.model = Fragile(model, lambda tokens: POISON in tokens or self.fails.pop(), late)
        self.fails, self.clock, self.ended, self.requests = _Fails(), Ticks(), set(), []
        self.engine = engine_of(
            self.model,
            num_blocks,
            waiting=line(),
            admission=admission(),
            clock=self.clock,
            max_waiting=6,
            **options,
        )

    @rule(
        text=st.sampled_from([*TEXTS, [3, POISON], [*range(9), POISON]]),
        new=st.integers(1, 12),
        num_samples=st.integers(1, 3),
        sampling=st.sampled_from([None, Sampling(1.0, seed=4), FailingDraw()]),
        stop=st.sampled_from([(), range(0, 96, 9)]),
        deadline_s=st.sampled_from([None, 3.0]),
        tenant=st.sampled_from("ab"),
    )
    def submit(self, text, new, stop, **options):
        if options["sampling"] is None:
            options["num_samples"] = min(2, options["num_samples"])
        try:
            request = self.engine.submit(text, new, stop_tokens=stop, **options)
        except EngineFull:
            assert self.engine.scheduler.num_waiting == 6
            return
        how = options["sampling"]
        for i, each in enumerate(request.samples):
            drawn = Sampling(1.0, seed=4 + i) if type(how) is Sampling else how
            self.requests.append((each, drawn))

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps):
        for _ in range(num_steps):
            self.clock.now_s += 0.5
            for each in self.engine.step():
                assert each.done and each not in self.ended
                self.ended.add(each)
            self.engine.check()

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 99))
    def cancel(self, which):
        self.requests[which % len(self.requests)][0].cancel()

    @rule(times=st.integers(1, 3))
    def fail(self, times):
        """The next calls of the model fail, whatever they compute."""
        self.fails.left = times

    @rule(where=st.sampled_from(["forward", "copy", "copied", "draw", "drawn"]))
    def interrupt(self, where):
        """The operator stops the engine inside a step, and goes on later."""
        owner, name = self.engine, "_forward"
        if where.startswith("cop"):
            owner, name = self.engine.cache, "_copy_of"
        if where.startswith("draw"):
            owner, name = self.engine, "_draw"
        real = getattr(owner, name)

        def interrupted(each):
            if where in ("copied", "drawn"):
                real(each)
            raise KeyboardInterrupt

        setattr(owner, name, interrupted)
        try:
            self.engine.step()
        except KeyboardInterrupt:
            pass
        finally:
            setattr(owner, name, real)

    @invariant()
    def holds(self):
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        self.fails.left, most = 0, 3000
        while self.engine.has_work:
            most -= 1
            assert most, "the engine never ends"
            self.clock.now_s += 0.5
            self.engine.step()
        assert_empty(self.engine)
        for request, sampling in self.requests:
            assert request.done and rightly_ended(request, sampling)


class _Fails:
    left = 0

    def pop(self):
        self.left -= 1
        return self.left >= 0


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestAnyOrder = AnyOrder.TestCase


def submitted(engine, rng):
    """Submits a random request, and returns how many samples of it there are."""
    text, new = rng.choice(TEXTS), rng.randint(1, 12)
    text = [*text, POISON] if rng.random() < 0.01 else text
    how = FailingDraw() if rng.random() < 0.01 else None
    late = rng.choice([None, None, None, 2.0, 30.0])
    samples = rng.choice([1, 1, 1, 1, 2])
    first = engine.submit(text, new, sampling=how, deadline_s=late, num_samples=samples)
    for each in first.samples:
        each.how = how
    return samples


def test_ten_thousand_random_requests_leave_nothing_behind():
    """Cancelled, late, failing in the model, in a draw, in a copy: about half of them."""
    model, _ = model_and_solo()
    rng, clock, injected = random.Random(9), Ticks(), []

    def fails(what):
        if failed := rng.random() < 0.02:
            injected.append(type(what))
        return failed

    def failing_copy(move):
        if fails(move):
            raise MemoryError("injected into a copy")
        copy(move)

    broken = Fragile(model, lambda tokens: POISON in tokens or fails(tokens), late=True)
    limits = StepLimits(max_tokens=64, max_running=32)
    engine = engine_of(broken, 30, limits=limits, swap_tokens=12, clock=clock)
    copy, engine.cache._copy_of = engine.cache._copy_of, failing_copy
    made, ended = 0, {}
    while made < 10_000 or engine.has_work:
        while made < 10_000 and engine.scheduler.num_waiting < 8:
            made += submitted(engine, rng)
        clock.now_s += 1.0
        gone = engine.step()
        if engine.live and rng.random() < 0.5:
            unwanted = rng.choice(list(engine.live.values()))
            gone += [unwanted, *unwanted.unborn]
            unwanted.cancel()
        for each in gone:
            ended[each.finish_reason] = ended.get(each.finish_reason, 0) + 1
            assert rightly_ended(each, each.how)
        if made % 50 < 3:
            engine.check()
    assert_empty(engine)
    engine.check()
    assert sum(ended.values()) == made >= 10_000
    assert min(ended[reason] for reason in ("length", "cancelled", "deadline", "error")) > 200
    assert injected.count(list) > 20 and injected.count(Move) > 10
    assert engine.scheduler.recomputed_tokens > 100
