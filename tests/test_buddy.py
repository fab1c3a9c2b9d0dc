"""The buddy system: powers of two, aligned, halves that find each other again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from allocator_machine import CellsMachine
from kvlib.allocator import Piece
from kvlib.buddy import BuddyArena, power_of_two
from kvlib.plan import OutOfBlocks, SequenceTooLong


def test_a_request_is_rounded_up_and_the_rest_is_internal_fragmentation():
    arena = BuddyArena(64)
    piece = arena.allocate(17)
    assert (piece, arena.asked(piece)) == (Piece(0, 32), 17)
    parts = arena.split(next_size=32, used={piece: (5, 17)})
    assert (parts.used, parts.reservation, parts.internal_fragmentation) == (5, 12, 15)


def test_of_several_holes_of_a_size_the_lowest_is_taken():
    arena = BuddyArena(8)
    pieces = [arena.allocate(2) for _ in range(4)]
    arena.free(pieces[2])
    arena.free(pieces[0])
    assert arena.allocate(2) == Piece(0, 2)


def test_halving_leaves_one_hole_of_each_size():
    arena = BuddyArena(16)
    arena.allocate(1)
    assert arena.holes == (Piece(1, 1), Piece(2, 2), Piece(4, 4), Piece(8, 8))


def test_neighbours_that_are_not_buddies_stay_apart():
    """Cells 1 and 2 touch, and yet make no piece of 2: their buddies are 0 and 3."""
    arena = BuddyArena(4)
    cells = [arena.allocate(1) for _ in range(4)]
    arena.free(cells[1])
    arena.free(cells[2])
    assert arena.num_free == 2 and not arena.can_allocate(2)
    assert arena.split(next_size=2).external_fragmentation == 2
    with pytest.raises(OutOfBlocks, match="asked for 2 in one piece, 2 free of 4, the largest"):
        arena.allocate(2)
    arena.free(cells[0])
    assert arena.allocate(2) == Piece(0, 2)


def test_a_free_block_of_another_size_is_no_buddy():
    """The buddy of [0, 4) is [4, 8); while half of that is taken, they do not join."""
    arena = BuddyArena(8)
    a, b = arena.allocate(4), arena.allocate(2)
    arena.free(a)
    assert arena.holes == (Piece(0, 4), Piece(6, 2))
    arena.free(b)
    assert arena.holes == (Piece(0, 8),)


def test_a_size_that_is_no_power_of_two_starts_as_the_sum_of_its_powers():
    arena = BuddyArena(22)
    assert arena.holes == (Piece(0, 16), Piece(16, 4), Piece(20, 2))
    assert arena.largest_request == 16
    pieces = [arena.allocate(size) for size in (2, 3, 16)]
    assert [piece.start for piece in pieces] == [20, 16, 0]
    for piece in pieces:
        arena.free(piece)
    assert arena.holes == (Piece(0, 16), Piece(16, 4), Piece(20, 2))


def test_more_than_the_largest_power_is_refused_for_ever():
    arena = BuddyArena(22)
    mine = arena.allocate(9)
    for call in (arena.allocate, lambda size: arena.resize(mine, size)):
        with pytest.raises(SequenceTooLong, match="asked for 17 in one piece, at most 16 of 22"):
            call(17)
    assert not arena.can_allocate(17)
    assert arena.pieces == (mine,)


def test_resize_within_the_rounded_size_moves_nothing():
    arena = BuddyArena(16)
    piece = arena.resize(arena.allocate(3), 4)
    assert (piece, arena.asked(piece)) == (Piece(0, 4), 4)
    piece = arena.resize(piece, 1)
    assert arena.holes == (Piece(1, 1), Piece(2, 2), Piece(4, 4), Piece(8, 8))


def test_resize_takes_the_free_upper_halves_or_moves():
    arena = BuddyArena(16)
    first = arena.resize(arena.allocate(2), 7)
    assert (first, arena.holes) == (Piece(0, 8), (Piece(8, 8),))
    second, third = arena.allocate(2), arena.allocate(2)
    assert (second.start, third.start) == (8, 10)
    third = arena.resize(third, 4)
    assert third == Piece(12, 4), "an upper half cannot grow where it is"
    with pytest.raises(OutOfBlocks):
        arena.resize(third, 8)
    assert arena.pieces == (first, second, third)


def test_an_upper_half_does_not_grow_over_its_free_lower_half():
    """Growing downwards would move the contents, and resize promises that the start stays."""
    arena = BuddyArena(4)
    lower, upper = arena.allocate(1), arena.allocate(1)
    arena.free(lower)
    assert arena.resize(upper, 2) == Piece(2, 2)
    assert arena.holes == (Piece(0, 2),)


def test_freed_twice_or_never_handed_out_is_refused():
    arena = BuddyArena(8)
    piece = arena.allocate(3)
    arena.free(piece)
    again = arena.allocate(3)
    for stranger in (piece, Piece(0, 4), -1):
        with pytest.raises(ValueError, match="not handed out"):
            arena.free(stranger)
    assert arena.pieces == (again,)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_sizes_are_whole_numbers_of_at_least_one(size):
    for call in (BuddyArena, BuddyArena(9).allocate, BuddyArena(9).can_allocate, power_of_two):
        with pytest.raises((TypeError, ValueError), match="size must be"):
            call(size)


@pytest.mark.parametrize(
    "starts, named",
    [
        ({8: [], 4: [8], 2: [12], 1: [14, 15]}, "buddies of 1 apart"),
        ({8: [], 4: [10], 2: [8, 14], 1: []}, "not aligned"),
        ({8: [8], 4: [8]}, "overlap"),
    ],
)
def test_check_names_what_is_broken(starts, named):
    arena = BuddyArena(16)
    arena.allocate(8)
    arena.check()
    arena._starts.update(starts)
    with pytest.raises(AssertionError, match=named):
        arena.check()


@given(size=st.integers(1, 300))
def test_with_everything_given_back_the_arena_is_as_new(size):
    arena = BuddyArena(size)
    new, pieces = arena.holes, []
    while arena.num_free:
        pieces.append(arena.allocate(1))
    assert len(pieces) == size
    for piece in pieces[::2] + pieces[1::2]:
        arena.free(piece)
        arena.check()
    assert arena.holes == new


class BuddyMachine(CellsMachine):
    """A request fits where an aligned run of free cells is."""

    SIZES = st.integers(1, 6) | st.integers(1, 41)

    @initialize(size=st.integers(1, 40))
    def start(self, size):
        self.begin(BuddyArena(size))

    def wide(self, size):
        return power_of_two(size)

    def starts(self, size):
        """The first cells of free runs of the rounded size, at multiples of it."""
        wide = self.wide(size)
        starts = range(0, self.arena.size - wide + 1, wide)
        return [at for at in starts if self.cells[at : at + wide] == [None] * wide]

    def stays(self, old, size):
        wide = self.wide(size)
        behind = self.cells[old.end : old.start + wide]
        return old.start % wide == 0 and behind == [None] * (wide - old.size)

    @invariant()
    def what_is_rounded_up_is_internal_fragmentation(self):
        asked = sum(size for _, size in self.live.values())
        parts = self.arena.split(next_size=3)
        assert parts.used == asked
        assert parts.internal_fragmentation == self.arena.size - self.arena.num_free - asked
        assert (parts.free > 0) == bool(self.starts(3))


TestBuddyMachine = BuddyMachine.TestCase
