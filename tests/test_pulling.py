"""Who is pulled to a receiver and when, and what a router sees of an instance."""

from collections import deque
from dataclasses import dataclass
from math import inf

import pytest

from kvlib.admission import AdmitPrompt
from kvlib.disaggregation import decode_instance, prefill_instance, serve_disaggregated
from kvlib.handover import Link
from kvlib.hash_index import HashIndex
from kvlib.pulling import Instance, Life
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.scheduled_step import StepLimits

FREE, SLOW = Link(inf), Link(1e-9)  # no time; a second a token of one byte


class Second:
    """Every step takes a second."""

    def seconds(self, step):
        return 1.0


def rows(*wanted):
    return [Request(i, *each) for i, each in enumerate(wanted)]


def run(requests, receiver, link=FREE, senders=1, **options):
    first = [prefill_instance(40, 1) for _ in range(senders)]
    return serve_disaggregated(requests, first, [receiver], Second(), link, 1, **options)


@dataclass
class Hopeful(AdmitPrompt):
    """Lets everybody in, whether or not there is memory."""

    def admits(self, job, memory, running):
        return True


@pytest.mark.parametrize(
    ("blocks", "handover_s", "now_s"), [(6, 1.0, 3.0), (9, 1.0, 3.0), (10, 0.0, 2.0)]
)
def test_a_rule_that_hopes_too_much_waits_for_memory_all_the_same(blocks, handover_s, now_s):
    """Two prompts of 4 are ready at 1 and need 5 places each; the first is there till 2."""
    receiver = decode_instance(blocks, 1, admission=Hopeful())
    done = run(rows((0.0, 4, 2), (0.0, 4, 2)), receiver)
    assert (done.finished, done.handover_s.max, done.now_s) == (2, handover_s, now_s)


def test_the_rule_is_not_asked_where_nobody_runs():
    """It wants six of ten places free, and each prompt needs five; so they go one by one."""
    receiver = decode_instance(10, 1, admission=AdmitPrompt(0.6))
    done = run(rows((0.0, 4, 2), (0.0, 4, 2)), receiver)
    assert (done.finished, done.handover_s.max, done.now_s) == (2, 1.0, 3.0)


def test_an_instance_that_is_lost_once_more_loses_nothing_more():
    """A (4 + 3) is under way 1-5, lost at 3, computed elsewhere 3-4; the second loss is at 3.5.

    Elsewhere is where it will be decoded, or another sender.
    """
    requests = rows((0.0, 4, 3))
    for senders in (1, 2):
        once, twice = (
            run(requests, decode_instance(40, 1), SLOW, senders, losses=losses)
            for losses in ([(3.0, 0)], [(3.0, 0), (3.5, 0)])
        )
        for done in (once, twice):
            assert (done.finished, done.lost, done.recomputed_tokens) == (1, 1, 4)
            assert done.bytes_sent == 4 * (senders - 1)
        assert once.now_s == twice.now_s


def test_a_prompt_without_a_place_whose_sender_is_lost_gives_up_its_turn():
    """One runs at a time: A (4 + 6) from 1 to 6. B (4 + 2), without a place, is lost at 2.5."""
    receiver = decode_instance(40, 1, limits=StepLimits(max_running=1))
    turn = type("Turn", (), {"choose": lambda self, request, all_: request.request_id % len(all_)})
    done = run(
        rows((0.0, 4, 6), (0.0, 4, 2), (0.0, 4, 2)),
        receiver,
        senders=3,
        prefill_router=turn(),
        losses=[(2.5, 1)],
    )
    assert (done.finished, done.lost, done.recomputed_tokens, done.sent) == (3, 1, 4, 3)
    # C goes 6-7, B, ready again at 3.5, goes 7-8.
    assert (done.now_s, done.handover_s.max) == (8.0, 5.0)


def instance(scheduler):
    return Instance(scheduler, Second(), lambda request: content_of(request, 2), "prefill")


def test_a_router_sees_what_waits_and_runs_and_how_many_tokens_that_is():
    scheduler = prefill_instance(40, 1, limits=StepLimits(8))
    one = instance(scheduler)
    assert (one.num_waiting, one.num_running, one.load_tokens) == (0, 0, 0)
    for request in rows((0.0, 8, 2), (0.0, 5, 2), (0.0, 3, 2)):
        scheduler.add(request, 0.0)
    assert (one.num_waiting, one.num_running, one.load_tokens) == (3, 0, 16)
    step = scheduler.schedule()
    assert (one.num_waiting, one.num_running, one.load_tokens) == (2, 1, 16)
    scheduler.report(step, 1.0)
    assert (one.num_waiting, one.num_running, one.load_tokens) == (2, 1, 16)
    scheduler.schedule()  # one token of the first, five of the second, two of the third
    assert (one.num_waiting, one.num_running, one.load_tokens) == (0, 3, 17)


def test_a_new_instance_is_there_with_its_link_free_and_nothing_to_do():
    one = instance(prefill_instance(4, 1))
    assert (one.alive, one.step, one.placeless) == (True, None, deque())
    assert (one.step_ends_s, one.link_free_s) == (0.0, 0.0)


def test_a_new_request_was_found_nowhere_and_is_nowhere():
    life = Life(3, rows((0.5, 4, 2))[0], 0.5, 2)
    assert (life.num_cached, life.prefilled_s) == (0, 0.0)
    assert life.first_token_s is life.computed is life.receiver is None


def test_two_requests_that_are_alike_are_two_and_nothing_is_noted_under_a_wrong_name():
    lives = [Life(0, rows((0.5, 4, 2))[0], 0.5, 2) for _ in range(2)]
    assert lives[0] != lives[1] and len({*lives}) == 2
    with pytest.raises(AttributeError, match="prefiled_s"):
        lives[0].prefiled_s = 1.0


@pytest.mark.parametrize(
    ("tokens", "found"),
    [(range(6), 4), (range(7), 6), (range(5), 4), (range(1), 0), ((0, 1, 9, 9, 9), 2)],
)
def test_a_router_is_told_how_much_of_a_prompt_lies_here_and_one_token_is_left(tokens, found):
    """Six tokens in blocks of two were computed here; whole blocks count, but for the last token.

    Asking changes nothing.
    """
    scheduler = prefill_instance(20, 2, HashIndex)
    one = instance(scheduler)
    first = Request(0, 0.0, 6, 1, token_ids=(*range(6), 77))
    job = scheduler.add(first, 0.0, content_of(first, 2))
    scheduler.report(scheduler.schedule(), 1.0)
    scheduler.memory.sent(job)
    asked = Request(1, 0.0, len(tokens), 1, token_ids=(*tokens, 77))
    assert [one.cached_tokens(asked) for _ in range(2)] == [found, found]
    assert (scheduler.memory.num_free, one.load_tokens) == (40, 0)
    scheduler.check()


def test_whoever_is_only_asked_about_holds_nothing_and_may_hold_nothing():
    asked = []
    scheduler = prefill_instance(4, 1)
    scheduler.memory.cached_tokens = lambda job: asked.append(job) or 3
    request = Request(5, 0.0, 4, 2, token_ids=tuple(range(6)))
    assert instance(scheduler).cached_tokens(request) == 3
    assert asked[0].request is request and asked[0].num_tokens == 4
    assert (asked[0].limit, asked[0].stop_at, asked[0].room) == (0, 0, 0)
