"""The engine: a text gets the tokens that it gets alone, whoever else comes, goes or fails."""

from contextlib import suppress

import pytest
import torch

from conftest import small_config
from engine_cases import Fragile, Solo, Ticks, assert_empty, engine_of, run
from exact_caches import fill
from kvlib.admission import AdmitReserved
from kvlib.content import TokenContent
from kvlib.engine_refusals import EngineFull
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.plan import SequenceTooLong
from kvlib.preemption import SwapSpace, oldest
from kvlib.request import Request
from kvlib.reservation import ReservePowerOfTwo
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.tensors.engine import Engine
from kvlib.tensors.llama import Llama
from kvlib.tensors.sampling import Sampling
from kvlib.waiting import PriorityLine

LONG, SHORT, ALIKE = [3, 1, 4, 1, 5, 9, 2, 6, 5], [8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 7, 8]
TEXTS = [LONG, ALIKE, SHORT, [1] * 13]
RECOMPUTE, SWAP = {"num_blocks": 8}, {"num_blocks": 8, "swap_tokens": 1000}
SETTINGS = {
    "large": {},
    "recompute": RECOMPUTE,
    "swap": SWAP,
    "a little swap": {"num_blocks": 8, "swap_tokens": 9},
    "chunks": {"limits": StepLimits(max_tokens=5)},
    "chunks, recompute": {**RECOMPUTE, "limits": StepLimits(max_tokens=5)},
    "chunks, swap": {**SWAP, "limits": StepLimits(max_tokens=5)},
    "whole prompts": {**RECOMPUTE, "limits": StepLimits(13, chunked_prefill=False)},
    "prompts first": {**SWAP, "limits": StepLimits(prefill_first=True)},
    "no sharing": {**RECOMPUTE, "prefix_caching": False},
    "no sharing, swap": {**SWAP, "prefix_caching": False},
    "blocks of one": {"num_blocks": 30, "block_size": 1},
    "oldest loses": {**SWAP, "victim": oldest},
}
settings = pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)


@pytest.fixture
def small_model(device):
    """Weights of its own behind the last layer: what it says depends on all that it read."""
    return Llama.random(small_config(tie_word_embeddings=False), seed=2, device=device)


@pytest.fixture
def solo(small_model):
    return Solo(small_model)


@settings
def test_a_batch_gives_each_text_what_it_gets_alone(small_model, solo, options):
    engine = engine_of(small_model, **options)
    fill(engine.cache.store, float("nan"))
    requests = [engine.submit(text, 12) for text in TEXTS]
    assert sorted(map(id, run(engine))) == sorted(map(id, requests))
    assert all(solo.agrees(each) and each.finish_reason == "length" for each in requests)


@settings
def test_every_forwarded_token_is_accounted_for(small_model, options):
    """prompt - cached + outputs - 1 for each, and again what was lost and not swapped."""
    engine = engine_of(small_model, **options)
    engine.submit(LONG, 3)
    engine.run()
    requests = [engine.submit(text, 12) for text in TEXTS]
    before = engine.counters.snapshot()
    run(engine)
    costs = [each.cost for each in requests]
    needed = [c.prompt_tokens - c.cached_tokens + c.output_tokens - 1 for c in costs]
    again = [c.recomputed_tokens for c in costs]
    assert [c.computed_tokens - c.recomputed_tokens for c in costs] == needed
    forwarded = engine.counters.since(before).tokens_forwarded
    assert forwarded == sum(needed) + sum(again)
    assert sum(again) == engine.scheduler.recomputed_tokens
    assert sum(c.cached_tokens for c in costs) >= (8 if engine.memory.prefixes is not None else 0)
    small = engine.memory.num_free < 40
    assert (sum(c.num_preempted for c in costs) > 0) == small
    if options.get("swap_tokens") == 1000:
        assert sum(c.swapped_tokens for c in costs) > 0 == sum(again)


@settings
def test_samples_share_their_prompt_and_get_what_each_gets_alone(small_model, solo, options):
    engine = engine_of(small_model, **options)
    how = Sampling(temperature=0.8, top_k=20, seed=5)
    first = engine.submit(LONG, 8, num_samples=3, sampling=how)
    other = engine.submit(SHORT, 10)
    run(engine)
    alone = [solo(LONG, 8, Sampling(0.8, 20, seed=5 + i)).tokens for i in range(3)]
    assert [tuple(each.tokens) for each in first.samples] == alone
    assert len(set(alone)) == 3 and solo.agrees(other)


def test_samples_hold_the_whole_blocks_once_and_a_copy_of_the_last_each(small_model):
    engine = engine_of(small_model, block_size=4, prefix_caching=False)
    first = engine.submit([7] * 10, 4, num_samples=3, sampling=Sampling(1.0))
    engine.step()
    assert engine.memory.num_held == 12 and engine.counters.tokens_forwarded == 10
    engine.step()
    tables = [each.job.block_ids for each in first.samples]
    assert len({tuple(table[:2]) for table in tables}) == 1
    assert len({table[2] for table in tables}) == 3
    assert engine.memory.pool.num_held == 2 + 3
    assert engine.counters.bytes_copied == 2 * 2 * engine.cache.store.bytes_per_token
    run(engine)
    assert [each.cost.computed_tokens for each in first.samples] == [13, 3, 3]
    assert [each.cost.cached_tokens for each in first.samples] == [0, 10, 10]


def test_samples_of_one_token_have_found_their_prompt(small_model, solo):
    engine = engine_of(small_model)
    first = engine.submit(LONG, 1, num_samples=3, sampling=Sampling(1.0, seed=5))
    assert run(engine) == list(first.samples)
    costs = [each.cost for each in first.samples]
    assert [(c.cached_tokens, c.computed_tokens) for c in costs] == [(0, 9), (9, 0), (9, 0)]
    alone = [solo(LONG, 1, Sampling(1.0, seed=5 + i)).tokens for i in range(3)]
    assert [tuple(each.tokens) for each in first.samples] == alone


def test_samples_that_all_stop_at_once_leave_nothing(small_model):
    engine = engine_of(small_model)
    first = engine.submit(LONG, 6, num_samples=3, stop_tokens=range(97), sampling=Sampling(1.0))
    assert run(engine) == list(first.samples)
    assert [each.finish_reason for each in first.samples] == ["stop"] * 3
    assert engine.counters.tokens_forwarded == 9


def test_a_sample_goes_on_without_the_first_and_finds_the_whole_blocks(small_model, solo):
    stop = solo(LONG, 1).tokens[0]
    engine = engine_of(small_model)
    first = engine.submit(LONG, 6, num_samples=2, stop_tokens=[stop])
    first.samples[1].choose = lambda logits: 7
    run(engine)
    assert (first.finish_reason, first.tokens) == ("stop", [stop])
    assert first.samples[1].tokens == [7] * 6 and stop != 7
    assert first.samples[1].cost.computed_tokens == 9 - 8 + 5


def test_samples_begin_in_their_order_before_those_that_wait(small_model):
    """They have waited with the first one; a stranger that came later does not pass them."""
    began = []

    def note(step):
        began.extend(engine.live[job] for job, _ in step.work if engine.live[job] not in began)

    limits = StepLimits(max_tokens=9, max_running=2)
    clock = Ticks()
    engine = engine_of(small_model, limits=limits, on_step=note, clock=clock)
    first, other = engine.submit(LONG, 4, num_samples=3), engine.submit(SHORT, 4)
    while engine.has_work:
        engine.step()
        clock.now_s += 1.0
    assert began == [*first.samples, other]
    assert [each.cost.waited_s for each in began] == [0.0, 0.0, 0.0, 4.0]


def test_requests_that_come_later_join_those_that_run(small_model, solo):
    engine = engine_of(small_model)
    requests = []
    for text in TEXTS:
        requests.append(engine.submit(text, 12))
        engine.step()
        engine.check()
    assert [len(each.tokens) for each in requests] == [4, 3, 2, 1]
    run(engine)
    assert all(map(solo.agrees, requests))


def test_the_next_turn_finds_the_answer_too(small_model, solo):
    engine = engine_of(small_model)
    turn = engine.submit(LONG, 8)
    run(engine)
    again = engine.submit(LONG + turn.tokens + [2], 4)
    run(engine)
    assert again.cost.cached_tokens == 16 and again.cost.computed_tokens == 18 - 16 + 3
    assert solo.agrees(again)


def test_tenants_share_nothing(small_model):
    engine = engine_of(small_model)
    costs = []
    for tenant in ("a", "b", "a"):
        request = engine.submit(LONG, 2, tenant=tenant)
        engine.run()
        costs.append(request.cost.cached_tokens)
    assert costs == [0, 0, 8]


@pytest.mark.parametrize("options", [RECOMPUTE, SWAP], ids=["recompute", "swap"])
def test_a_draw_does_not_change_when_memory_is_lost(small_model, solo, options):
    engine = engine_of(small_model, **options)
    hows = [Sampling(temperature=1.0, top_p=0.9, seed=i) for i in range(4)]
    requests = [engine.submit(t, 12, sampling=how) for t, how in zip(TEXTS, hows, strict=True)]
    run(engine)
    alone = [solo(t, 12, how).tokens for t, how in zip(TEXTS, hows, strict=True)]
    assert [tuple(each.tokens) for each in requests] == alone
    assert sum(each.cost.num_preempted for each in requests) > 0


def test_a_stop_token_ends_an_answer_and_is_its_last(small_model, solo):
    stop = solo(LONG, 12).tokens[4]
    engine = engine_of(small_model)
    request, other = engine.submit(LONG, 12, stop_tokens=[stop]), engine.submit(SHORT, 12)
    run(engine)
    assert tuple(request.tokens) == solo(LONG, 12, stop_tokens=[stop]).tokens
    assert (request.finish_reason, request.tokens[-1]) == ("stop", stop)
    assert len(other.tokens) == 12 and solo.agrees(other)


def test_a_request_out_of_turn_runs_first_in_a_line_that_looks(small_model):
    engine = engine_of(small_model, waiting=PriorityLine(), limits=StepLimits(max_running=1))
    late, soon = engine.submit(LONG, 2, priority=1), engine.submit(SHORT, 2, priority=0)
    assert run(engine) == [soon, late]


def test_the_line_of_a_request_counts_and_times(small_model):
    clock = Ticks()

    def tick(step):
        clock.now_s += 2.0

    engine = engine_of(small_model, clock=clock, on_step=tick, limits=StepLimits(max_running=1))
    engine.submit(SHORT, 3)
    request = engine.submit(LONG, 5)
    run(engine)
    assert str(request.cost) == (
        "prompt 9, cached 0, computed 13, recomputed 0, swapped 0, output 5, preempted 0,"
        " waited 6 s, TTFT 8 s, TPOT 2 s"
    )
    assert str(request.cost).startswith(request.cost.counts)
    assert request.token_s == [8.0, 10.0, 12.0, 14.0, 16.0] and request.finished_s == 16.0


def test_a_request_that_is_young_has_few_numbers(small_model):
    cost = engine_of(small_model).submit(LONG, 5).cost
    assert (cost.waited_s, cost.ttft_s, cost.tpot_s) == (None, None, None)
    assert str(cost) == cost.counts


def test_a_full_line_refuses_with_numbers_and_changes_nothing(small_model):
    engine = engine_of(small_model, max_waiting=2, limits=StepLimits(max_running=1))
    first = engine.submit(LONG, 2)
    engine.step()
    engine.submit(SHORT, 2)
    engine.submit(SHORT, 2)
    words = "asked to wait behind 2 requests, max_waiting is 2; 1 run, 61 of 64 blocks are free"
    with pytest.raises(EngineFull, match=words):
        engine.submit(SHORT, 2)
    engine.check()
    assert engine.scheduler.num_waiting == 2 and engine.num_requests == 3
    while not first.done:
        engine.step()
    engine.step()
    engine.submit(SHORT, 2)
    run(engine)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"prompt_ids": []}, ValueError, "at least 1 token, got 0"),
        ({"prompt_ids": [3, 97]}, ValueError, r"token 1 of the prompt is outside .* \[0, 97\)"),
        ({"prompt_ids": [-1]}, ValueError, "token 0 of the prompt is outside"),
        ({"prompt_ids": [1.0]}, TypeError, "whole number"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1"),
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1"),
        ({"deadline_s": 0.0}, ValueError, "deadline_s must be above 0, got 0.0"),
        ({"deadline_s": float("nan")}, ValueError, "deadline_s"),
        ({"tenant": 5}, TypeError, "a tenant must be a text, got 5"),
        ({"priority": None}, TypeError, "priority must be a whole number, got None"),
        ({"stop_tokens": ["a"]}, TypeError, "a stop token must be a whole number, got 'a'"),
        ({"stop_tokens": [-1]}, ValueError, "a stop token must be at least 0, got -1"),
        ({"max_new_tokens": 56}, SequenceTooLong, "9 prompt and 56 new tokens, 17 blocks of 4"),
    ],
)
def test_a_bad_request_is_refused_and_changes_nothing(small_model, change, error, words):
    engine = engine_of(small_model)
    with pytest.raises(error, match=words):
        engine.submit(**{"prompt_ids": LONG, "max_new_tokens": 4, **change})
    engine.check()
    assert_empty(engine)
    assert engine.num_requests == 0


def test_samples_of_a_prompt_that_fills_a_step_are_refused(small_model):
    engine = engine_of(small_model, limits=StepLimits(9, chunked_prefill=False))
    with pytest.raises(SequenceTooLong, match="samples behind a prompt of 9 tokens"):
        engine.submit(LONG, 3, num_samples=2)
    engine.submit(LONG, 3)
    run(engine)


def test_a_sample_for_which_admission_asks_too_much_ends_alone(small_model, solo):
    """Of 32 slots, 28 + 4 for the first sample; 29 + 4 for one that has a token already."""
    engine = engine_of(small_model, 8, admission=AdmitReserved(ReservePowerOfTwo()))
    first = engine.submit([9] * 28, 4, num_samples=2)
    other = engine.submit(SHORT, 4)
    run(engine)
    assert [each.finish_reason for each in first.samples] == ["length", "error"]
    assert isinstance(first.samples[1].error, SequenceTooLong)
    assert solo.agrees(first) and solo.agrees(other)


def test_max_seq_len_is_one_that_model_and_memory_hold(small_model):
    assert engine_of(small_model).scheduler.max_seq_len == 64
    assert engine_of(small_model, num_blocks=4).scheduler.max_seq_len == 16
    assert engine_of(small_model, max_seq_len=20).scheduler.max_seq_len == 20
    for refused in (65, 0):
        with pytest.raises(ValueError, match="max_seq_len"):
            engine_of(small_model, max_seq_len=refused)
    for refused in ("8", 8.0):
        with pytest.raises(TypeError, match="max_seq_len must be a whole number"):
            engine_of(small_model, max_seq_len=refused)


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@settings
def test_a_request_on_which_the_model_fails_harms_no_other(small_model, solo, options, late):
    model = Fragile(small_model, lambda tokens: 96 in tokens, late)
    engine = engine_of(model, **options)
    requests = [engine.submit(text, 12) for text in TEXTS]
    broken = engine.submit([5, 6, 7, 8, 96, 3], 8, num_samples=2)
    run(engine)
    assert all(map(solo.agrees, requests))
    assert [each.finish_reason for each in broken.samples] == ["error", "error"]
    assert isinstance(broken.error, RuntimeError) and broken.tokens == []
    with pytest.raises(RuntimeError, match="injected"):
        list(broken)


def test_a_batch_that_fails_as_a_whole_is_computed_one_by_one(small_model, solo):
    model = Fragile(small_model, lambda tokens: len(tokens) > 13)
    engine = engine_of(model)
    requests = [engine.submit(text, 6) for text in TEXTS]
    run(engine)
    assert all(map(solo.agrees, requests))
    assert engine.counters.tokens_forwarded == sum(len(t) + 5 for t in TEXTS)


def test_a_chooser_that_fails_ends_its_own_request(small_model, solo):
    class Failing(Sampling):
        def chooser(self):
            left = [1, 2]
            return lambda logits: left.pop() + 0

    engine = engine_of(small_model)
    broken, other = engine.submit(LONG, 6, sampling=Failing()), engine.submit(ALIKE, 6)
    samples = engine.submit(SHORT, 6, num_samples=3, sampling=Sampling(1.0))
    samples.samples[1].choose = lambda logits: 1 // 0
    run(engine)
    assert broken.tokens == [2, 1] and isinstance(broken.error, IndexError)
    assert solo.agrees(other)
    assert [each.finish_reason for each in samples.samples] == ["length", "error", "length"]


@pytest.mark.parametrize(
    ("token", "error"),
    [(None, TypeError), ([1], TypeError), (1.0, TypeError), (97, ValueError), (-1, ValueError)],
)
def test_a_chooser_that_returns_no_token_ends_its_own_request(small_model, solo, token, error):
    engine = engine_of(small_model)
    before, broken, after = (engine.submit(text, 6) for text in TEXTS[:3])
    broken.choose = lambda logits: token
    run(engine)
    assert (broken.finish_reason, broken.tokens) == ("error", [])
    assert isinstance(broken.error, error)
    assert solo.agrees(before) and solo.agrees(after) and len(after.tokens) == 6


def test_of_a_request_that_failed_nothing_is_found(small_model, solo):
    """Its keys were written; but a block is known only when its step was reported."""
    failing = [True]
    engine = engine_of(Fragile(small_model, lambda tokens: bool(failing), late=True))
    broken = engine.submit(LONG, 6)
    run(engine)
    failing.clear()
    again = engine.submit(LONG, 6)
    run(engine)
    assert broken.finish_reason == "error" and again.cost.cached_tokens == 0
    assert solo.agrees(again)


def test_the_host_holds_no_more_than_it_may(small_model):
    """Tokens, not whole blocks: 3 tokens of a block of 4 are not 4."""
    seen = set()
    for swap_tokens in range(1, 24):
        engine = engine_of(small_model, 8, swap_tokens=swap_tokens)
        requests = [engine.submit(text, 12) for text in TEXTS]
        while engine.has_work:
            engine.step()
            engine.check()
            held, rest = divmod(engine.cache.host_nbytes, engine.cache.store.bytes_per_token)
            assert held <= swap_tokens and not rest
            assert held == sum(each.job.num_swapped for each in requests)
            seen.add(held % 4)
    assert 3 in seen


def test_what_the_host_keeps_for_nobody_is_found(small_model):
    engine = engine_of(small_model, **SWAP)
    request = engine.submit(LONG, 6)
    engine.step()
    engine.cache._host[request.job] = (torch.zeros(3, 1), torch.zeros(3, 1))
    with pytest.raises(AssertionError, match="the host keeps what is not swapped out"):
        engine.check()


def test_a_copy_that_fails_ends_its_own_request(small_model, solo, monkeypatch):
    for kind in ("out", "in", "copy"):
        engine = engine_of(small_model, **SWAP)
        copy = engine.cache._copy_of
        failed = []

        def failing(move, kind=kind, copy=copy, failed=failed):
            if move.kind == kind and not failed:
                failed.append(move.job)
                raise MemoryError("no room on the host")
            copy(move)

        monkeypatch.setattr(engine.cache, "_copy_of", failing)
        requests = [engine.submit(text, 12, num_samples=2) for text in TEXTS]
        run(engine)
        each = [sample for request in requests for sample in request.samples]
        broken = [sample for sample in each if sample.finish_reason == "error"]
        assert [sample.job for sample in broken] == failed and failed
        assert all(map(solo.agrees, each))


def test_a_step_that_is_interrupted_is_taken_again(small_model, solo):
    def interrupted(tokens):
        if len(times) < 3:
            times.append(len(tokens))
            raise KeyboardInterrupt
        return False

    times = []
    engine = engine_of(Fragile(small_model, interrupted), **SWAP)
    requests = [engine.submit(text, 12) for text in TEXTS]
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        engine.check()
    run(engine)
    assert all(map(solo.agrees, requests))


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("kind", ["out", "in", "copy"])
def test_a_copy_that_is_interrupted_is_made_again(small_model, solo, kind, late):
    engine = engine_of(small_model, **SWAP)
    copy, times = engine.cache._copy_of, []

    def interrupted(move):
        if move.kind == kind and len(times) < 3:
            times.append(move)
            if late:
                copy(move)
            raise KeyboardInterrupt
        copy(move)

    engine.cache._copy_of = interrupted
    requests = [engine.submit(text, 12, num_samples=2) for text in TEXTS]
    while engine.has_work:
        with suppress(KeyboardInterrupt):
            engine.step()
        engine.check()
    assert len(times) == 3 and all(each.error is None for each in requests)
    assert all(solo.agrees(sample) for each in requests for sample in each.samples)
    assert_empty(engine)


def test_a_draw_that_is_interrupted_is_not_made_again_by_those_before(small_model, solo):
    how, times = Sampling(1.0, seed=5), []
    engine = engine_of(small_model)
    first, other = engine.submit(LONG, 6, num_samples=2, sampling=how), engine.submit(SHORT, 6)
    choose = other.choose

    def interrupted(logits):
        times.append(1)
        if len(times) in (1, 2, 5):
            raise KeyboardInterrupt
        return choose(logits)

    other.choose = interrupted
    while engine.has_work:
        try:
            engine.step()
        except KeyboardInterrupt:
            engine.check()
    alone = [solo(LONG, 6, Sampling(1.0, seed=5 + i)).tokens for i in range(2)]
    assert [tuple(each.tokens) for each in first.samples] == alone and solo.agrees(other)
    assert first.cost.computed_tokens == 9 + 5 + first.cost.recomputed_tokens > 14


def test_a_step_inside_of_a_step_is_refused(small_model, solo):
    engine = engine_of(small_model)
    requests = [engine.submit(text, 6) for text in TEXTS]
    engine.on_step = lambda step: engine.step()
    with pytest.raises(RuntimeError, match="a step while one runs"):
        engine.step()
    engine.on_step = None
    requests[1].choose = lambda logits: next(iter(requests[0]))
    run(engine)
    assert isinstance(requests[1].error, RuntimeError)
    assert requests[0].finish_reason == "cancelled"  # its loop was left, by an error
    assert all(map(solo.agrees, [requests[0], *requests[2:]]))


def test_two_engines_share_a_model(small_model, solo):
    engines = [engine_of(small_model, **options) for options in (SWAP, {"block_size": 8})]
    requests = [engine.submit(text, 12) for text in TEXTS for engine in engines]
    while any(engine.has_work for engine in engines):
        for engine in engines:
            engine.step()
            engine.check()
    assert all(map(solo.agrees, requests))


def test_a_listener_that_fails_leaves_the_step_to_be_taken_again(small_model, solo):
    engine = engine_of(small_model, on_step=lambda step: 1 // 0, **SWAP)
    requests = [engine.submit(text, 12) for text in TEXTS]
    for _ in range(9):
        with pytest.raises(ZeroDivisionError):
            engine.step()
        engine.on_step = None
        engine.step()
        engine.on_step = lambda step: 1 // 0
        engine.check()
    engine.on_step = None
    run(engine)
    assert all(map(solo.agrees, requests))
    assert sum(each.cost.num_preempted for each in requests) > 0


def test_engine_and_simulator_schedule_the_same_steps(small_model):
    """The scheduler is one: on a model, and on lengths alone once the lengths are known."""
    options = {"limits": StepLimits(max_tokens=7, max_running=3), "victim": oldest}
    for swap in (0, 30):
        seen = []
        engine = engine_of(small_model, 9, swap_tokens=swap, on_step=seen.append, **options)
        requests, plans = [], []

        def submit(engine=engine, requests=requests):
            if len(requests) < len(TEXTS):
                requests.append(engine.submit(TEXTS[len(requests)], 12))

        submit()
        while engine.has_work:
            engine.step()
            plans.append([(job.order, n) for job, n in seen[-1].work])
            submit()
        memory = KVMemory(9, 4, HashIndex)
        space = SwapSpace(swap) if swap else None
        simulator = Scheduler(memory, swap=space, max_seq_len=36, **options)
        simulated, added = [], 0

        while simulator.has_work or added < len(TEXTS):
            if added < len(TEXTS):
                known = requests[added].prompt + requests[added].tokens
                asked = Request(added, None, len(known) - 12, 12, max_new_tokens=12)
                simulator.add(asked, content=TokenContent(known, 4))
                added += 1
            step = simulator.schedule()
            simulated.append([(job.order, n) for job, n in step.work])
            simulator.report(step)
        assert plans == simulated and len(plans) > 20
        assert engine.scheduler.recomputed_tokens == simulator.recomputed_tokens


def test_on_another_dtype_and_device(device):
    model = Llama.random(small_config(), seed=1, device=device).to(torch.bfloat16)
    engine = engine_of(model, **SWAP)
    assert (engine.cache.store.dtype, engine.cache.device.type) == (torch.bfloat16, device.type)
    requests = [engine.submit(text, 8, num_samples=2) for text in TEXTS]
    run(engine)
    assert all(each.finish_reason == "length" for each in requests)


def test_the_engine_is_short():
    from kvlib.tensors import engine

    with open(engine.__file__, encoding="utf-8") as file:
        assert len(file.readlines()) < 200


# Cases that were reported of real engines, by their public ids.


def test_SD_1_an_impossible_request_is_refused_and_those_behind_it_finish(small_model):
    model = Llama.random(small_config(max_position_embeddings=2048), seed=1)
    engine = Engine(model, 49, 16)
    before = [engine.submit([5, i], 3) for i in range(10)]
    with pytest.raises(SequenceTooLong, match=r"63 blocks of 16;.* 49 blocks"):
        engine.submit([1] * 1002, 1)
    behind = engine.submit(SHORT, 3)
    assert len(run(engine)) == 11 and behind.done and all(each.done for each in before)


def test_SD_3_a_lone_request_beyond_the_pool_is_refused(small_model):
    engine = engine_of(small_model, num_blocks=4)
    with pytest.raises(SequenceTooLong, match=r"8 prompt and 30 .* 10 blocks of 4;.*16"):
        engine.submit([1] * 8, 30)
    fits = engine.submit([1] * 8, 8)
    run(engine, most_steps=9)
    assert len(fits.tokens) == 8 and fits.cost.num_preempted == 0


def test_PR_1_what_was_generated_is_computed_again_too(small_model, solo):
    steps = []
    engine = engine_of(
        small_model,
        num_blocks=14,
        block_size=1,
        prefix_caching=False,
        on_step=lambda step: steps.append([(job.order, n) for job, n in step.work]),
    )
    first, second = engine.submit([1] * 5, 4), engine.submit([2] * 5, 6)
    for _ in range(3):
        engine.step()
    assert len(second.tokens) == 3
    engine.step()
    assert first.done and second.cost.num_preempted == 1 and not second.job.room
    engine.step()
    assert steps[-1] == [(1, 8)]
    run(engine)
    assert steps[5] == [(1, 1)] and solo.agrees(second)
    assert second.cost.recomputed_tokens == 7


def test_PR_3_what_is_cached_is_asked_for_when_memory_is_given(small_model):
    model = Llama.random(small_config(max_position_embeddings=2048), seed=1)
    steps = []
    engine = Engine(model, 6, 256, on_step=steps.append)
    request = engine.submit([i % 90 for i in range(600)], 3)
    engine.step()
    engine.scheduler._preempt(request.job, steps[-1])
    assert not request.job.room
    job = request.job
    engine.step()
    assert job.num_cached == 512 and steps[-1].work == [(job, 601 - 512)]
    assert len(job.block_ids) == 3 and job.num_computed == 601
    run(engine)


@pytest.mark.parametrize("options", [RECOMPUTE, SWAP], ids=["recompute", "swap"])
def test_PR_4_a_small_memory_changes_no_output(small_model, options):
    answers, preempted = [], []
    for each in ({}, options):
        engine = engine_of(small_model, **each)
        requests = [engine.submit(text, 12) for text in TEXTS[:3]]
        run(engine)
        answers.append([each.tokens for each in requests])
        preempted.append(sum(each.cost.num_preempted for each in requests))
    assert answers[0] == answers[1] and preempted[0] == 0 < preempted[1]


def test_LN_4_what_ran_before_leaves_no_trace(small_model):
    fresh, used = (engine_of(small_model, num_blocks=8) for _ in range(2))
    used.submit(LONG, 12)
    run(used)
    requests = [engine.submit(SHORT, 12) for engine in (fresh, used)]
    for engine in (fresh, used):
        run(engine)
    assert requests[0].tokens == requests[1].tokens


def test_LN_5_positions_go_on_by_one(small_model):
    engine = engine_of(small_model)
    plan, positions = engine.cache.ledger.plan, []

    def spied(new):
        made = plan(new)
        positions.append(made.positions)
        return made

    engine.cache.ledger.plan = spied
    engine.submit([5] * 6, 5)
    run(engine)
    assert [each[0] for each in positions] == [0, 6, 7, 8, 9]


def test_BM_3_what_is_found_after_a_preemption_is_no_hit(small_model):
    model = Llama.random(small_config(max_position_embeddings=2048), seed=1)
    steps = []
    engine = Engine(model, 12, 16, on_step=steps.append)
    request = engine.submit([i % 90 for i in range(64)], 3)
    engine.step()
    engine.scheduler._preempt(request.job, steps[-1])
    engine.step()
    assert request.job.num_cached >= 48
    run(engine)
    assert request.cost.cached_tokens == 0 and request.cost.num_preempted == 1
