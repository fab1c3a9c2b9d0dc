"""An engine under load has the very times of the simulator, and refuses and fails as is counted."""

from itertools import count
from math import inf

import pytest

from kvlib.arrivals import at_rate
from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.kv_memory import KVMemory
from kvlib.load_test import load_test
from kvlib.lognormal import Spread, lognormal
from kvlib.request import Request
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving_run import Target
from kvlib.simulated_server import SimulatedServer, VirtualTime
from kvlib.tensors.engine import Engine
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig
from kvlib.tensors.load_server import EngineServer, _prompt_of

CLOCK = RooflineClock(gpu("A10"), model("Llama-3-8B"))
TINY = LlamaConfig(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=8,
)
MODEL = Llama.random(TINY, seed=0)
LIMITS = StepLimits(max_tokens=48, max_running=16)


def engine_server(num_blocks=128, stalls=(), **options):
    time = VirtualTime(CLOCK, stalls)
    options = {"limits": LIMITS, "prefix_caching": False} | options
    engine = Engine(MODEL, num_blocks, 8, clock=time.now, on_step=time.pass_step, **options)
    return EngineServer(engine, time)


def simulated(num_blocks=128, stalls=()):
    scheduler = Scheduler(KVMemory(num_blocks, 8), limits=LIMITS)
    return SimulatedServer(scheduler, CLOCK, stalls=stalls)


@pytest.mark.parametrize("users", [None, 6])
@pytest.mark.parametrize("num_blocks", [24, 128])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_engine_in_virtual_time_has_the_timings_of_the_simulator(seed, num_blocks, users):
    rows = at_rate(lognormal(40, seed, Spread(24, 0.6), Spread(12, 0.5), 150), 60.0, seed)
    stalls = [(0.2, 0.5)]
    served = engine_server(num_blocks, stalls)
    run = load_test(served, rows, users)
    assert run == load_test(simulated(num_blocks, stalls), rows, users)
    assert all(t.output_tokens == r.output_tokens for t, r in zip(run.timings, rows, strict=True))
    if num_blocks == 24 and users is None:
        assert run.preempted > 0
    served.engine.check()
    assert not served.has_work


def test_a_full_engine_and_a_request_too_long_are_refused_and_counted():
    rows = [Request(i, 0.0, 8, 4) for i in range(10)] + [Request(10, 0.0, 5000, 1)]
    run = load_test(engine_server(max_waiting=4), rows)
    assert run.refused == 7
    assert [t.refused for t in run.timings] == [False] * 4 + [True] * 7
    assert run.ttfts_s[4:] == [inf] * 7


def test_a_request_that_breaks_is_no_good_one_and_harms_no_other():
    served = engine_server()
    first, second = (served.send(Request(i, 0.0, 8, 4)) for i in range(2))
    served.step()
    assert served.progress(first) == served.progress(second) == (1, False, 0, False)
    first.cancel()
    assert served.progress(first) == (1, True, 0, True)
    while served.has_work:
        served.step()
    assert served.progress(second) == (4, True, 0, False)


def test_who_is_cancelled_between_steps_frees_the_user_who_waits():
    """The first step of the engine cancels what it runs; nobody waits for ever."""
    time, made = VirtualTime(CLOCK), []

    def cancel(step):
        time.pass_step(step)
        for each in list(made[0].engine.live.values()):
            if each.prompt == _prompt_of(Request(0, None, 8, 4), 64):
                each.cancel()

    made.append(EngineServer(Engine(MODEL, 64, 8, clock=time.now, on_step=cancel), time))
    run = load_test(made[0], [Request(i, 0.0, 8, 4) for i in range(3)], users=1)
    assert [t.finished_s < inf for t in run.timings] == [False, True, True]


def test_a_virtual_time_must_be_the_engines_own():
    time = VirtualTime(CLOCK)
    engine = Engine(MODEL, 16, 8, clock=time.now)
    for virtual in (None, VirtualTime(CLOCK)):
        with pytest.raises(ValueError, match="whose now"):
            EngineServer(engine, virtual)
    with pytest.raises(ValueError, match="whose now"):
        EngineServer(Engine(MODEL, 16, 8), time)


def test_real_time_is_waited_for_by_sleeping_until_it_is_there():
    ticks, slept = count(), []
    engine = Engine(MODEL, 16, 8, clock=lambda: float(next(ticks)))
    EngineServer(engine, sleep=slept.append).wait_until(2.5)
    assert slept == [2.5, 1.5, 0.5]


def test_real_time_counts_from_when_a_request_was_due():
    """The clock is real; only what no machine can change is asserted."""
    rows = [Request(i, 0.0, 8, 3) for i in range(3)]
    run = load_test(EngineServer(Engine(MODEL, 64, 8)), rows, users=1)
    sent = run.as_if_due_when_sent()
    assert run.ttfts_s[0] < run.ttfts_s[1] < run.ttfts_s[2]
    assert all(a >= b > 0 for a, b in zip(run.ttfts_s, sent.ttfts_s, strict=True))
    assert run.good_share(Target(1e6, 1e6)) == 1.0


def test_prompts_are_the_requests_own_else_seeded_and_shared_by_none():
    prompts = [_prompt_of(Request(i, None, 40, 1), 64) for i in range(20)]
    assert all(len(p) == 40 and set(p) <= set(range(64)) for p in prompts)
    assert len({tuple(p[:4]) for p in prompts}) == 20
    assert _prompt_of(Request(0, None, 2, 2, token_ids=(9, 8, 7, 6)), 64) == [9, 8]
