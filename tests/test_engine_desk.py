"""An engine's bookkeeping without a model: every token is 7, and every step takes a second."""

import pytest

from engine_cases import TEXT, Sevens
from kvlib.scheduled_step import StepLimits


def ends(*requests):
    return [(each.finish_reason, each.finished_s, len(each.tokens)) for each in requests]


def test_requests_are_numbered_and_end_when_they_have_all_tokens():
    desk = Sevens()
    assert not desk.has_work
    first, second = desk.ask(), desk.ask([1], new=1)
    assert desk.has_work and [job.request.request_id for job in desk.live] == [0, 1]
    assert desk.run() == [second, first] and desk.num_requests == 2
    assert ends(first, second) == [("length", 3.0, 3), ("length", 1.0, 1)]
    assert first.tokens == [7, 7, 7] and desk.run() == []


def test_a_stop_token_is_the_last_and_ends_it():
    desk = Sevens()
    request, other = desk.ask(stop=[7, 8]), desk.ask(stop=[8])
    assert desk.run() == [request, other]
    assert ends(request, other) == [("stop", 1.0, 1), ("length", 3.0, 3)]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_the_next_turn_finds_prompt_and_answer_of_its_tenant(prefix_caching):
    desk, found = Sevens(prefix_caching=prefix_caching), []
    for tenant in ("", "", "a", "b", "a"):
        request = desk.ask(TEXT, new=8, tenant=tenant)
        desk.run()
        again = desk.ask([*TEXT, *request.tokens, 2], new=1, tenant=tenant)
        desk.run()
        found.append((request.cost.cached_tokens, again.cost.cached_tokens))
    shared = [(0, 16), (8, 16), (0, 16), (0, 16), (8, 16)]
    assert found == (shared if prefix_caching else [(0, 0)] * 5)


def test_samples_begin_behind_the_prompt_in_their_order_before_others():
    desk = Sevens(limits=StepLimits(max_tokens=9, max_running=2))
    first = desk.ask(samples=3)
    other = desk.ask([1, 1])
    assert desk.num_requests == 2 and len(desk.live) == 2
    assert desk.step() == [] and [len(each.tokens) for each in first.samples] == [1, 1, 1]
    assert desk.num_requests == 4 and {each.started_s for each in first.samples} == {1.0}
    ended = desk.run()
    assert ended == [first, first.samples[1], first.samples[2], other]
    assert [each.cost.cached_tokens for each in first.samples] == [0, 9, 8]
    assert [each.cost.computed_tokens for each in first.samples] == [11, 2, 3]


def test_a_first_sample_that_stops_leaves_the_others_going():
    desk = Sevens()
    first = desk.ask(samples=2, stop=[8])
    first.choose = lambda logits: 8
    assert desk.step() == [first] and first.finish_reason == "stop"
    assert desk.run() == [first.samples[1]] and first.samples[1].tokens == [7, 7, 7]


def test_who_is_cancelled_takes_along_samples_that_have_not_begun():
    desk = Sevens()
    first, other = desk.ask(samples=3), desk.ask()
    desk.now_s = 5.0
    assert desk.end(first, "cancelled") == list(first.samples)
    assert ends(*first.samples) == [("cancelled", 5.0, 0)] * 3
    assert desk.end(first, "error", ValueError()) == [] and first.error is None
    desk.check()
    begun = desk.ask(samples=2)
    desk.step()
    assert desk.end(begun, "cancelled", now_s=9.5) == [begun] and begun.finished_s == 9.5
    assert desk.run() == [other, begun.samples[1]] and begun.samples[1].tokens == [7, 7, 7]


def test_nothing_of_who_is_gone_is_copied():
    desk = Sevens()
    first = desk.ask(samples=2)
    desk.step()
    step = desk.scheduler.schedule()
    assert [move.job for move in desk.memory.moves] == [first.samples[1].job] and step.work
    first.samples[1].cancel()
    assert not desk.memory.moves
    desk.check()


@pytest.mark.parametrize(("deadline_s", "tokens"), [(2.0, 1), (2.5, 2), (None, 9)])
def test_a_deadline_ends_it_when_it_has_come(deadline_s, tokens):
    desk = Sevens()
    request = desk.ask(new=9, deadline_s=deadline_s)
    assert desk.run() == [request] and len(request.tokens) == tokens
    assert request.finish_reason == ("deadline" if deadline_s else "length")


def test_what_is_swapped_out_is_counted_once_and_a_copy_that_fails_ends_it():
    desk = Sevens(num_blocks=6, swap_tokens=50)
    first, second = desk.ask(new=12), desk.ask(TEXT[::-1], new=12)
    assert desk.run() == [first, second]
    assert (first.cost.swapped_tokens, second.cost.swapped_tokens) == (0, 12)
    assert second.cost.recomputed_tokens == 0 and len(second.tokens) == 12
    for kind in ("out", "in"):
        desk = Sevens(num_blocks=6, swap_tokens=50)
        desk.broken = {kind: OSError(kind)}
        first, second = desk.ask(new=12), desk.ask(TEXT[::-1], new=12)
        assert set(desk.run()) == {first, second} and len(first.tokens) == 12
        assert (second.finish_reason, str(second.error)) == ("error", kind)
