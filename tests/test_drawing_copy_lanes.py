"""The two lanes drawn are two recurrences; less than the sum, never below the longer one."""

from itertools import pairwise, product

import pytest

from kvlib.show.drawings.copy_lanes import copy_lanes, in_turns, layer_wise, most_ahead

LAYERS, COPY, DISTANCE, BUSY = (4, 8, 16), (0.25, 0.5, 1, 2, 4), (1, 2, 4, 16), (0, 2, 4, 8)


def ends(layers, copy, distance, busy):
    copies, computes = [copy] * layers, [1] * layers
    turns = in_turns(copies, computes, busy)[-1][1]
    return turns, layer_wise(copies, computes, distance, busy)[1][-1][1]


@pytest.mark.parametrize("layers", LAYERS)
def test_less_than_in_turns_and_never_below_one_lane(layers):
    for copy, distance, busy in product(COPY, DISTANCE, BUSY):
        turns, beside = ends(layers, copy, distance, busy)
        assert max(layers * copy, busy + layers) <= beside
        assert turns == max(layers * copy, busy) + layers
        if not busy:
            assert beside < turns == layers * copy + layers
            assert beside == copy + 1 + (layers - 1) * max(copy, 1), "the closed form"


def test_a_distance_matters_only_while_the_model_is_busy():
    assert len({ends(8, 2, d, 0)[1] for d in DISTANCE}) == 1
    late = [ends(8, 2, d, 8)[1] for d in DISTANCE]
    assert late == sorted(late, reverse=True) and late[0] > late[-1] == 17


def test_no_layer_computes_before_it_is_there_and_lanes_do_one_thing_at_a_time():
    for distance in DISTANCE:
        moved, computed = layer_wise([1, 5, 2, 2, 1], [2, 1, 1, 4, 1], distance, 3)
        for lane in (moved, computed):
            assert all(a[1] <= b[0] for a, b in pairwise(lane))
        assert all(there[1] <= used[0] for there, used in zip(moved, computed, strict=True))
        for i in range(distance, 5):
            assert moved[i][0] >= computed[i - distance][0]
        assert 1 <= most_ahead(moved, computed) <= distance
        assert computed[0][0] >= 3


def test_the_words_are_the_figures():
    svg = copy_lanes(8, 1, 16, 0)
    assert "done at 16" in svg and "done at 9" in svg
    assert "Layer by layer saves 7 of 16. The longer lane alone takes until 8." in svg


@pytest.mark.parametrize(
    ("copy", "distance", "busy", "used"),
    [(1, 1, 0, 1), (1, 16, 0, 1), (2, 16, 8, 4), (2, 2, 8, 2), (0.25, 16, 0, 6), (4, 16, 0, 1)],
)
def test_the_drawing_says_how_much_of_the_room_was_used(copy, distance, busy, used):
    svg = copy_lanes(8, copy, distance, busy)
    assert f"room for {distance} ahead, {used} used" in svg
