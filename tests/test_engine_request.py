"""A request in its client's hands: streams, cancellation, deadlines, several tasks on one loop."""

import asyncio
from math import inf

import pytest

from conftest import small_config
from engine_cases import Fragile, Solo, Ticks, assert_empty, engine_of, run
from kvlib.engine_request import EngineRequest
from kvlib.request_cost import Cost
from kvlib.scheduled_step import StepLimits
from kvlib.tensors.llama import Llama

LONG, SHORT = [3, 1, 4, 1, 5, 9, 2, 6, 5], [8, 8]


@pytest.fixture(scope="module")
def model():
    return Llama.random(small_config(tie_word_embeddings=False), seed=2)


@pytest.fixture(scope="module")
def solo(model):
    return Solo(model)


def test_a_loop_gets_each_token_when_it_is_there(model, solo):
    engine = engine_of(model)
    request, other = engine.submit(LONG, 5), engine.submit(SHORT, 9)
    seen = [(token, len(request.tokens)) for token in request]
    assert seen == [(token, i + 1) for i, token in enumerate(solo(LONG, 5).tokens)]
    assert request.done and not other.done and len(other.tokens) == 5
    assert list(request) == request.tokens
    assert tuple(other) == solo(SHORT, 9).tokens
    assert_empty(engine)


def test_whoever_leaves_the_loop_cancels(model, solo):
    engine = engine_of(model)
    request, other = engine.submit(LONG, 9), engine.submit(SHORT, 9)
    for token in request:
        if token == solo(LONG, 9).tokens[1]:
            break
    engine.check()
    assert request.finish_reason == "cancelled" and len(engine.live) == 1
    run(engine)
    assert len(request.tokens) == 2 and solo.agrees(request) and solo.agrees(other)


def test_an_ended_request_is_not_cancelled(model):
    engine = engine_of(model)
    request = engine.submit(SHORT, 2)
    run(engine)
    request.cancel()
    assert request.finish_reason == "length"


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_cancelled_at_any_time_it_frees_all_at_once(model, solo, steps):
    engine = engine_of(model, num_blocks=8, swap_tokens=50, limits=StepLimits(max_tokens=5))
    requests = [engine.submit(LONG, 12, num_samples=2), engine.submit(LONG[:6], 9)]
    requests.append(engine.submit(SHORT, 9))
    for _ in range(steps):
        engine.step()
    for request in requests[:2]:
        for sample in request.samples:
            sample.cancel()
        engine.check()
    run(engine)
    assert [r.finish_reason for r in requests] == ["cancelled", "cancelled", "length"]
    assert all(map(solo.agrees, requests))


def test_a_swapped_request_that_is_cancelled_leaves_nothing_on_the_host(model):
    engine = engine_of(model, num_blocks=8, swap_tokens=50)
    requests = [engine.submit(LONG, 12), engine.submit(LONG[::-1], 12)]
    while not any(request.job.num_swapped for request in requests):
        engine.step()
    assert engine.cache.host_nbytes > 0 and engine.scheduler.running.swap.num_free < 50
    requests[1].cancel()
    assert engine.cache.host_nbytes == 0 and engine.scheduler.running.swap.num_free == 50
    run(engine)


def test_samples_that_have_not_begun_end_with_the_first_and_later_ones_do_not(model):
    for steps, others in ((0, "cancelled"), (1, "length")):
        engine = engine_of(model)
        request = engine.submit(LONG, 4, num_samples=3)
        for _ in range(steps):
            engine.step()
        request.cancel()
        run(engine)
        assert [each.finish_reason for each in request.samples[1:]] == [others] * 2


def test_a_sample_that_is_cancelled_before_it_begins_never_does(model, solo):
    engine = engine_of(model)
    request = engine.submit(LONG, 4, num_samples=2)
    request.samples[1].cancel()
    run(engine)
    assert request.samples[1].tokens == [] and solo.agrees(request)


def test_a_listener_may_cancel_and_submit(model, solo):
    engine = engine_of(model, num_blocks=8, swap_tokens=50)
    requests = [engine.submit(LONG, 12, num_samples=2), engine.submit(LONG[::-1], 12)]
    later = []

    def meddle(step):
        if len(later) == 6:
            requests[1].cancel()
        later.append(engine.submit(SHORT, 3))

    engine.on_step = meddle
    for _ in range(9):
        engine.step()
        engine.check()
    engine.on_step = None
    run(engine)
    assert all(map(solo.agrees, requests + later)) and requests[1].finish_reason == "cancelled"


def test_who_is_cancelled_inside_a_step_gets_nothing_of_it(model, solo):
    """By the chooser of another, before and after its own draw, and while the model runs."""

    def cancelling(logits):
        before.cancel()
        after.cancel()
        return int(logits.argmax())

    def fails(tokens):
        if len(during.tokens) == 2:
            during.cancel()
        return False

    engine = engine_of(Fragile(model, fails))
    before, middle, after = (engine.submit(LONG, 4) for _ in range(3))
    during = engine.submit(SHORT, 4)
    middle.choose = cancelling
    run(engine)
    assert (before.tokens, after.tokens, len(during.tokens)) == ([], [], 2)
    gone = [each.finish_reason for each in (before, after, during)]
    assert gone == ["cancelled"] * 3 and solo.agrees(middle)
    assert [each.cost.computed_tokens for each in (before, after)] == [9, 9]
    assert [each.cost.recomputed_tokens for each in (before, after, during)] == [0, 0, 0]


def test_who_was_cancelled_while_the_model_failed_stays_cancelled(model):
    def fails(tokens):
        if broken.job.room:
            broken.cancel()
        return True

    engine = engine_of(Fragile(model, fails))
    broken = engine.submit(SHORT, 4, num_samples=2)
    assert engine.step() == [] and broken.error is None
    assert [each.finish_reason for each in broken.samples] == ["cancelled"] * 2
    assert_empty(engine)


@pytest.mark.parametrize("swap_tokens", [0, 100])
def test_a_deadline_ends_it_wherever_it_is(model, solo, swap_tokens):
    clock = Ticks()
    engine = engine_of(model, num_blocks=8, swap_tokens=swap_tokens, clock=clock)
    engine.scheduler.limits = StepLimits(max_running=2)
    texts = [LONG, LONG[::-1], LONG[:6], SHORT]
    requests = [engine.submit(text, 12, deadline_s=9.0) for text in texts]
    keep = engine.submit(SHORT, 12, deadline_s=500.0)
    ended = []
    while engine.has_work:
        clock.now_s += 1.0
        ended += engine.step()
        engine.check()
    late = [each for each in requests if each.finish_reason == "deadline"]
    assert late and late == ended[: len(late)] and all(each.finished_s == 9.0 for each in late)
    assert all(map(solo.agrees, [*requests, keep])) and keep.finish_reason == "length"
    assert_empty(engine)
    assert list(late[0]) == late[0].tokens


def test_tasks_on_one_event_loop(model, solo):
    async def read(request):
        return [token async for token in request]

    async def leave_after(request, most):
        stream = aiter(request)
        got = [await anext(stream) for _ in range(most)]
        await stream.aclose()
        return got

    async def main():
        engine = engine_of(model, num_blocks=16)
        requests = [engine.submit(text, 8) for text in (LONG, SHORT, LONG[::-1])]
        left = engine.submit(LONG, 8)
        answers = await asyncio.gather(*map(read, requests), leave_after(left, 3))
        assert_empty(engine)
        assert answers[:3] == [list(solo(r.prompt, 8).tokens) for r in requests]
        assert answers[3] == left.tokens[:3] and left.finish_reason == "cancelled"

    asyncio.run(main())


def test_an_event_loop_notices_a_break_a_moment_later(model, solo):
    async def main():
        engine = engine_of(model)
        left, other = engine.submit(LONG, 20), engine.submit(SHORT, 8)
        async for _ in left:
            if len(left.tokens) == 2:
                break
        await engine.serve()
        assert left.finish_reason == "cancelled" and len(left.tokens) <= 4
        assert solo.agrees(left) and solo.agrees(other)
        assert_empty(engine)

    asyncio.run(main())


def test_who_comes_after_the_line_was_empty_is_served_by_its_own_loop(model, solo):
    async def main():
        engine = engine_of(model)
        await engine.serve()
        first = engine.submit(LONG, 4)
        await engine.serve()
        late = engine.submit(SHORT, 4)
        assert [token async for token in late] == list(solo(SHORT, 4).tokens)
        assert solo.agrees(first)

    asyncio.run(main())


def test_the_engine_serves_beside_other_tasks(model, solo):
    """Nobody iterates: one task serves, another submits while it runs."""

    async def main():
        engine = engine_of(model)
        first = engine.submit(LONG, 8)
        serving = asyncio.create_task(engine.serve())
        while len(first.tokens) < 3:
            await asyncio.sleep(0)
        second = engine.submit(SHORT, 8)
        await serving
        assert not engine.has_work
        assert solo.agrees(first) and solo.agrees(second)

    asyncio.run(main())


def test_a_task_that_is_cancelled_cancels_its_request(model, solo):
    async def read(request):
        async for _ in request:
            pass

    async def main():
        engine = engine_of(model)
        request, other = engine.submit(LONG, 20), engine.submit(SHORT, 8)
        reading = asyncio.create_task(read(request))
        while len(request.tokens) < 2:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert request.finish_reason == "cancelled"
        await engine.serve()
        assert solo.agrees(other)
        assert_empty(engine)

    asyncio.run(main())


def test_an_error_reaches_the_one_who_waits_for_it(model):
    async def read(request):
        return [token async for token in request]

    engine = engine_of(Fragile(model, lambda tokens: 96 in tokens))
    broken, other = engine.submit([96], 4), engine.submit(SHORT, 4)
    with pytest.raises(RuntimeError, match="injected"):
        asyncio.run(read(broken))
    assert len(list(other)) == 4


def test_known_tokens_go_from_the_prompt_into_the_answer():
    request = EngineRequest(None, [10, 11, 12], 9, max, frozenset(), 0.0, None)
    request.tokens += [20, 21]
    spans = {(a, b): request.known(a, b) for a in range(5) for b in range(a, 6)}
    assert all(got == [10, 11, 12, 20, 21][a:b] for (a, b), got in spans.items())


def test_a_request_by_itself_counts_what_it_got_and_when():
    request = EngineRequest(None, [10, 11, 12], 9, max, frozenset(), 2.0, None)
    assert request.unborn == [] and request.deadline_s == inf
    assert request.cost == Cost(3, 0, 0, 0, 0, 0, 0, None, None, None)
    for now_s in (3.0, 4.0, 7.0):
        request.draw([20, 21], 22)
        assert request.receive(now_s) == 21
    request.started_s = 2.5
    request.swapped(4)
    request.swapped(2)
    assert request.cost == Cost(3, 3, 0, 0, 6, 3, 0, 0.5, 1.0, 2.0)
    asked = request.asked(5)
    assert (asked.request_id, asked.prompt_tokens, asked.output_tokens) == (5, 6, 6)


def test_who_has_ended_is_due_nothing_and_computed_nothing():
    request = EngineRequest(None, [10, 11, 12], 9, max, frozenset(), 2.0, None)
    request.finish_reason = "cancelled"
    assert request.computed(3, 4.0) is False
    assert request.cost == Cost(3, 0, 0, 0, 0, 0, 0, None, None, None)
