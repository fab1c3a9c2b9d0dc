"""What a request is if nobody says more, and what is never printed of it."""

from dataclasses import asdict

import pytest

from kvlib.request import ContentPiece, Request, Workload
from kvlib.served import ServedRequest

PLAIN = {
    "request_id": 3,
    "arrival_s": None,
    "prompt_tokens": 5,
    "output_tokens": 2,
    "block_ids": (),
    "token_ids": (),
    "conversation_id": None,
    "turn": None,
    "session_id": None,
    "pieces": (),
    "max_new_tokens": None,
    "tenant": "",
    "priority": 0,
}


def test_what_a_request_is_if_nobody_says_more():
    request = Request(3, None, 5, 2)
    assert {name: getattr(request, name) for name in PLAIN} == PLAIN
    assert asdict(request) == PLAIN


def test_a_request_stays_as_it_is_and_has_room_for_nothing_else():
    """A trace is millions of them."""
    request = Request(3, None, 5, 2)
    with pytest.raises(AttributeError):
        request.prompt_tokens = 6
    assert request == Request(3, None, 5, 2)
    assert not hasattr(request, "__dict__")


def test_what_a_request_says_is_not_printed():
    said = {
        "block_ids": (70001,),
        "token_ids": (70002,),
        "pieces": (ContentPiece("user", 70003, 4),),
    }
    request = Request(3, 0.5, 5, 2, turn=70004, **said)
    assert "7000" in repr(request)
    assert not any(f"7000{i}" in repr(request) for i in (1, 2, 3))
    assert all(getattr(request, name) == value for name, value in said.items())


def test_a_workload_is_its_requests_in_order():
    rows = tuple(Request(i, float(i), 1, 1) for i in range(3))
    workload = Workload("three", "Three requests.", "", rows)
    assert (len(workload), [*workload], workload.requests) == (3, [*rows], rows)
    assert repr(workload) == "Workload(name='three', description='Three requests.', source='')"
    with pytest.raises(AttributeError):
        workload.name = "four"


def test_a_request_that_has_just_arrived_holds_nothing():
    job = ServedRequest(Request(3, None, 5, 2), 7, 0.5, 9, 7)
    zero = ("num_tokens", "num_computed", "num_cached", "num_cached_first", "room", "num_indexed")
    zero += ("num_started", "num_preempted", "num_lost", "num_swapped")
    assert {name: getattr(job, name) for name in zero} == dict.fromkeys(zero, 0)
    none = ("content", "piece", "first_token_s", "finished_s")
    assert {name: getattr(job, name) for name in none} == dict.fromkeys(none)
    assert (job.order, job.arrived_s, job.limit, job.stop_at, job.block_ids) == (7, 0.5, 9, 7, [])
    assert not hasattr(job, "__dict__")


def test_two_that_ask_for_the_same_are_two():
    one, two = (ServedRequest(Request(3, None, 5, 2), 7, 0.5, 9, 7) for _ in range(2))
    assert one == one and one != two and len({one, two}) == 2
    one.block_ids.append(1)
    assert two.block_ids == []


def test_outputs_are_what_is_known_behind_the_prompt():
    job = ServedRequest(Request(3, None, 5, 2), 7, 0.5, limit=9, stop_at=7, num_tokens=6)
    assert (job.num_outputs, job.max_outputs) == (1, 4)


@pytest.mark.parametrize("allowed, limit", [(None, 8), (2, 7), (3, 8), (99, 8)])
def test_a_request_ends_where_its_client_or_the_longest_sequence_says(allowed, limit):
    asked = Request(0, None, 5, 9, max_new_tokens=allowed)
    job = ServedRequest.arrived(asked, 1, 0.5, 8, None)
    assert (job.limit, job.stop_at, job.num_tokens, job.order) == (limit, limit, 5, 1)
