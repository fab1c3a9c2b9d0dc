"""The arena map shows what the allocators do, with the same traffic for all of them."""

import pytest

from kvlib.show.drawings.arena_map import ALLOCATORS, EVENTS, SIZE, arena_map, moments, traffic


@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_moment_is_sound_and_the_losses_add_up(name):
    for moment in moments(name):
        moment.allocator.check()
        parts = moment.allocator.split(next_size=8)
        lost = parts.internal_fragmentation + parts.external_fragmentation
        assert parts.used + lost + parts.free == SIZE


@pytest.mark.parametrize("name", ALLOCATORS)
def test_what_is_in_use_is_what_the_traffic_asked_for_and_was_given(name):
    live = {}
    for (request, size), moment in zip(traffic(), moments(name)[1:], strict=True):
        if size and "refused" not in moment.event:
            live[request] = size
        elif not size:
            live.pop(request, None)
        assert moment.allocator.split(1).used == sum(live.values())


def test_at_the_default_two_refuse_what_two_can_give():
    assert {name: "A request of 8 fits." in arena_map(name, 50, 8) for name in ALLOCATORS} == {
        "first fit": False,
        "best fit": True,
        "buddy": False,
        "slab": True,
    }
    assert "is refused, though" in arena_map("first fit", 50, 8)


def test_refusals_by_the_end_of_the_traffic():
    refused = {name: moments(name)[EVENTS].refused for name in ALLOCATORS}
    assert refused == {"first fit": 1, "best fit": 0, "buddy": 2, "slab": 12}


def test_a_slab_says_that_more_than_a_chunk_never_fits():
    assert "A request of 12 never fits: at most 8 does." in arena_map("slab", 0, 12)
