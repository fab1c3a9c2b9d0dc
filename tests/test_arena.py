"""The arena: pieces that do not overlap, holes that join, losses that keep their names."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.arena import Arena, Piece, first_fit
from kvlib.plan import OutOfBlocks


def test_first_fit_takes_the_lowest_hole_that_is_large_enough():
    holes = [Piece(0, 2), Piece(5, 4), Piece(12, 4)]
    assert first_fit(holes, 3) == Piece(5, 4)
    assert first_fit(holes, 5) is None


def test_every_other_cell_free_has_room_for_nothing_of_two():
    """Eight cells, used pattern 1,0,1,0,...: four are free, in pieces of one."""
    arena = Arena(8)
    pieces = [arena.allocate(1) for _ in range(8)]
    for piece in pieces[1::2]:
        arena.free(piece)
    with pytest.raises(OutOfBlocks, match="asked for 2 in one piece, 4 free of 8, the"):
        arena.allocate(2)
    parts = arena.split(next_size=2)
    assert (parts.used, parts.external_fragmentation, parts.free) == (4, 4, 0)
    assert arena.split(next_size=1).external_fragmentation == 0


def test_free_space_of_one_hole_does_not_make_up_for_another():
    """60 free in holes of 20 and 40 free in one piece: 30 fit only in the second."""
    arena = Arena(160)
    small = [arena.allocate(20) for _ in range(6)]
    for piece in small[::2]:
        arena.free(piece)
    assert (arena.num_free, arena.largest_hole) == (100, 40)
    assert arena.allocate(30) == Piece(120, 30)
    assert not arena.can_allocate(21)


def test_neighbouring_holes_become_one_from_either_side():
    arena = Arena(9)
    a, b, c = (arena.allocate(3) for _ in range(3))
    for order in ((a, b, c), (c, b, a), (a, c, b), (b, a, c)):
        for piece in order:
            arena.free(piece)
        assert arena.holes == (Piece(0, 9),)
        assert [arena.allocate(3) for _ in range(3)] == [a, b, c]


@pytest.mark.parametrize("piece", [Piece(0, 2), Piece(1, 3), Piece(3, 3), Piece(-1, 1)])
def test_only_what_was_handed_out_is_taken_back(piece):
    arena = Arena(9)
    mine = arena.allocate(3)
    with pytest.raises(ValueError, match="not handed out"):
        arena.free(piece)
    arena.free(mine)
    with pytest.raises(ValueError, match="freed before"):
        arena.free(mine)
    assert arena.num_free == 9


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_sizes_are_whole_numbers_of_at_least_one(size):
    for call in (Arena, Arena(9).allocate):
        with pytest.raises((TypeError, ValueError), match="size must be"):
            call(size)


def test_the_three_losses_are_kept_apart():
    arena = Arena(20)
    first, second = arena.allocate(8), arena.allocate(8)
    parts = arena.split(next_size=8, used={first: (3, 5), second: (2, 2)})
    assert (parts.used, parts.reservation) == (5, 2)
    assert (parts.internal_fragmentation, parts.external_fragmentation) == (9, 4)


class ArenaMachine(RuleBasedStateMachine):
    """Random traffic against a list of cells, each of which remembers its owner."""

    def __init__(self):
        super().__init__()
        self.arena = Arena(24)
        self.cells = [None] * 24
        self.live = []

    @rule(size=st.integers(1, 9))
    def allocate(self, size):
        fits = any(all(cell is None for cell in self.cells[i : i + size]) for i in range(25 - size))
        assert self.arena.can_allocate(size) == fits
        if not fits:
            with pytest.raises(OutOfBlocks):
                self.arena.allocate(size)
            return
        piece = self.arena.allocate(size)
        assert all(cell is None for cell in self.cells[piece.start : piece.end])
        self.cells[piece.start : piece.end] = [piece] * size
        self.live.append(piece)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        piece = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.arena.free(piece)
        self.cells[piece.start : piece.end] = [None] * piece.size

    @invariant()
    def nothing_is_lost(self):
        self.arena.check()
        assert self.arena.num_free == self.cells.count(None)
        assert sorted(self.live) == list(self.arena.pieces)
        parts = self.arena.split(next_size=4)
        assert parts.used == 24 - self.arena.num_free


TestArenaMachine = ArenaMachine.TestCase
