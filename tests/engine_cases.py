"""What tests of the engine share: the same text without an engine, a model that fails, a clock."""

from kvlib.engine_desk import RequestDesk, one_at_a_time
from kvlib.engine_request import EngineRequest
from kvlib.metrics import WorkCounters
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.engine import Engine
from kvlib.tensors.generate import Generation, generate

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


class Solo:
    """Answers of a model that serves one text at a time, each computed once."""

    def __init__(self, model):
        self._model, self._known = model, {}

    def __call__(self, prompt, max_new_tokens, sampling=None, stop_tokens=()):
        key = tuple(prompt), max_new_tokens, sampling, tuple(stop_tokens)
        if key not in self._known:
            cache = ContiguousKVCache(
                self._model.kv_shape,
                num_seqs=1,
                max_seq_len=len(prompt) + max_new_tokens,
                dtype=self._model.dtype,
                device=self._model.device,
            )
            options = {"cache": cache, "sampling": sampling, "stop_tokens": stop_tokens}
            self._known[key] = generate(self._model, prompt, max_new_tokens, **options)
        return self._known[key]

    def agrees(self, request, **options):
        """Answers whether a request got what it gets alone; of one that was cut off, so far."""
        alone = self(request.prompt, request.max_new_tokens, **options)
        got = tuple(request.tokens)
        if request.finish_reason not in ("length", "stop"):
            alone = Generation(alone.tokens[: len(got)], alone.gaps[: len(got)], alone.work)
        return alone.agrees_with(Generation(got, (), WorkCounters()))


class Fragile:
    """A model that raises where `fails(tokens)` says so, before its layers ran or after.

    A model that fails late has written its keys and values: they must not count.
    """

    def __init__(self, model, fails=lambda tokens: False, late=False):
        self._model, self.fails, self.late = model, fails, late

    def __getattr__(self, name):
        return getattr(self._model, name)

    def __call__(self, tokens, cache, plan):
        failing = self.fails(tokens.tolist())
        if failing and not self.late:
            raise RuntimeError("injected into a step")
        logits = self._model(tokens, cache, plan)
        if failing:
            raise RuntimeError("injected into a step")
        return logits


class Ticks:
    """A clock that a test advances."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def run(engine, most_steps=10_000):
    """Runs an engine to the end and proves its invariants after every step; returns who ended."""
    ended = []
    while engine.has_work:
        most_steps -= 1
        assert most_steps, "the engine never ends"
        ended += engine.step()
        engine.check()
    assert_empty(engine)
    return ended


def assert_empty(engine):
    """Proves that nothing is held by anybody."""
    assert not engine.live and not engine.has_work and not engine.memory.moves
    assert engine.memory.num_held == engine.scheduler.load_tokens == engine.cache.host_nbytes == 0
    swap = engine.scheduler.running.swap
    assert swap is None or swap.num_free == swap.num_tokens


def engine_of(model, num_blocks=64, block_size=4, **options):
    return Engine(model, num_blocks, block_size, **options)


class Sevens(RequestDesk):
    """Whoever is due gets what its rule says, 7 by default; `broken` kinds of copies fail."""

    def __init__(self, num_blocks=16, block_size=4, context_len=64, **options):
        self.now_s, self.broken = 0.0, {}
        plain = dict(max_seq_len=None, prefix_caching=True, swap_tokens=0, max_waiting=9)
        super().__init__(
            num_blocks, block_size, context_len, clock=lambda: self.now_s, **(plain | options)
        )

    def ask(self, prompt=TEXT, new=3, samples=1, stop=(), deadline_s=None, **owner):
        rest = (frozenset(stop), self.now_s, deadline_s)
        made = [
            EngineRequest(self, prompt, new, lambda logits: 7, *rest, **owner)
            for _ in range(samples)
        ]
        return self.take(made)

    @one_at_a_time
    def step(self):
        self.now_s += 1.0
        ended = self.end_late(self.now_s)
        if not self.has_work:
            return ended
        step, moves = self.scheduler.schedule(), [*self.memory.moves]
        self.memory.moves.clear()
        for move in moves:
            ended += self.moved(move, self.broken.get(move.kind))
        due = []
        for request, n in [(self.live[job], n) for job, n in step.work if job.room]:
            if request.computed(n, self.now_s):
                due += [request, *request.unborn]
        for request in due:
            request.draw(None, 97)
        self.scheduler.report(step, self.now_s)
        return ended + self.deliver(due, self.now_s)

    def run(self):
        ended = []
        while self.has_work:
            ended += self.step()
            self.check()
        assert not self.live and self.memory.num_held == 0
        return ended
