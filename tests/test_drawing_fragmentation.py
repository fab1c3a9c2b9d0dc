"""The fragmentation drawing tells what the arena tells."""

from itertools import pairwise

import pytest

from kvlib.show.drawings.fragmentation import SIZE, arenas, fragmentation


def test_every_state_is_a_sound_arena_one_event_from_the_last():
    states = arenas()
    for arena in states:
        arena.check()
    for before, after in pairwise(states):
        assert len(set(before.pieces) ^ set(after.pieces)) == 1


def test_the_default_shows_free_memory_that_serves_nobody():
    arena = arenas()[36]
    assert (arena.num_free, arena.largest_hole) == (28, 5)
    assert "A request of 8 is refused, though 28 slots are free." in fragmentation(36, 8)


@pytest.mark.parametrize("next_size", [2, 8, 16])
def test_the_shares_add_up(next_size):
    for arena in arenas():
        parts = arena.split(next_size)
        assert parts.used + parts.free + parts.external_fragmentation == SIZE
