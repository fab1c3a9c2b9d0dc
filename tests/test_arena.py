"""The arena: pieces that do not overlap, holes that join, losses that keep their names."""

from copy import deepcopy

import pytest
from hypothesis.stateful import invariant, rule

from allocator_machine import CellsMachine
from kvlib.arena import Arena, Piece, best_fit, first_fit
from kvlib.buddy import BuddyArena
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.slab import SlabPool


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
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        for index in order:
            arena.free((a, b, c)[index])
        assert arena.holes == (Piece(0, 9),)
        a, b, c = (arena.allocate(3) for _ in range(3))
        assert [a.start, b.start, c.start] == [0, 3, 6]


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


def test_best_fit_takes_the_smallest_hole_and_the_lowest_of_equals():
    holes = [Piece(0, 9), Piece(20, 4), Piece(30, 4), Piece(40, 2)]
    assert best_fit(holes, 3) == Piece(20, 4)
    assert best_fit(holes, 4) == Piece(20, 4)
    assert best_fit(holes, 5) == best_fit(holes, 9) == Piece(0, 9)
    assert best_fit(holes, 10) is None
    assert Arena(9, fit=best_fit).allocate(4) == Piece(0, 4)


@pytest.mark.parametrize(
    "fit", [lambda holes, size: holes[0], lambda holes, size: Piece(0, 9)], ids=["small", "no hole"]
)
def test_a_fit_that_chooses_wrongly_is_refused(fit):
    """Readers write their own; without the check pieces would overlap."""
    arena = Arena(9)
    first = arena.allocate(2)
    arena.allocate(2)
    arena.free(first)
    arena._fit = fit
    for call in (arena.allocate, arena.can_allocate):
        with pytest.raises(ValueError, match=r"fit chose Piece.* for 5: no hole, or too small"):
            call(5)
    assert arena.holes == (Piece(0, 2), Piece(4, 5))


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_the_next_request_is_a_whole_number_of_at_least_one(size):
    with pytest.raises((TypeError, ValueError), match="next_size must be"):
        Arena(9).split(size)


def test_a_stale_handle_does_not_free_the_next_owner():
    """The second owner has the same range; freeing the first one's handle again is refused."""
    arena = Arena(9)
    first = arena.allocate(3)
    arena.free(first)
    second = arena.allocate(3)
    assert second == first
    for call in (arena.free, arena.asked, lambda piece: arena.resize(piece, 2)):
        with pytest.raises(ValueError, match="not handed out"):
            call(first)
    assert arena.pieces == (second,) and arena.num_free == 6


def test_what_is_no_piece_is_refused():
    arena = Arena(9)
    arena.allocate(3)
    for stranger in (-1, None, (0, 3), Arena(9).allocate(3)):
        with pytest.raises(ValueError, match="not handed out"):
            arena.free(stranger)
    with pytest.raises(ValueError, match="not handed out"):
        arena.split(3, {Piece(3, 3): (1, 2)})
    assert arena.num_free == 6


def test_more_than_the_arena_is_refused_for_ever():
    arena = Arena(9)
    mine = arena.allocate(2)
    for call in (arena.allocate, lambda size: arena.resize(mine, size)):
        with pytest.raises(SequenceTooLong, match="asked for 10 in one piece, at most 9 of 9"):
            call(10)
    assert not arena.can_allocate(10)
    assert arena.pieces == (mine,)


def test_resize_extends_into_the_hole_behind():
    arena = Arena(12)
    first, second, _ = (arena.allocate(3) for _ in range(3))
    arena.free(second)
    first = arena.resize(first, 5)
    assert (first, arena.holes) == (Piece(0, 5), (Piece(5, 1), Piece(9, 3)))
    first = arena.resize(first, 6)
    assert (first, arena.holes) == (Piece(0, 6), (Piece(9, 3),))
    first = arena.resize(first, 2)
    assert (first, arena.holes) == (Piece(0, 2), (Piece(2, 4), Piece(9, 3)))
    assert arena.asked(first) == 2


def test_resize_moves_only_into_memory_that_is_free_beside_the_old_piece():
    arena = Arena(12)
    first, second = arena.allocate(3), arena.allocate(3)
    assert arena.resize(first, 6) == Piece(6, 6)
    with pytest.raises(OutOfBlocks, match="asked for 7 in one piece, 3 free of 12, the largest"):
        arena.resize(second, 7)
    assert arena.pieces == (second, Piece(6, 6))
    second = arena.resize(second, 3)
    assert (second, arena.holes) == (Piece(3, 3), (Piece(0, 3),))


@pytest.mark.parametrize(
    "make",
    [lambda: Arena(9), lambda: BuddyArena(8), lambda: SlabPool(9, 3)],
    ids=["arena", "buddy", "slab"],
)
def test_every_allocator_counts_in_whole_units_and_asks_for_twice_as_much(make):
    allocator = make()
    piece = allocator.allocate(2)
    assert allocator.grown(piece) == 2 * piece.size
    for size in (0, -1, 1.5, True):
        for call in (allocator.can_allocate, lambda n: allocator.resize(piece, n)):
            with pytest.raises((TypeError, ValueError), match="size must be"):
                call(size)
    assert allocator.pieces == (piece,) and allocator.asked(piece) == 2


def test_compaction_makes_one_hole_and_keeps_the_order_and_the_contents():
    """Public case FR-1: of 1,0,1,0,... four are free, one in a row; compacted, four in a row."""
    arena, cells = Arena(8), list("a-b-c-d-")
    pieces = [arena.allocate(1) for _ in range(8)]
    for piece in pieces[1::2]:
        arena.free(piece)
    assert (arena.num_free, arena.largest_hole) == (4, 1)
    assert 1 - arena.largest_hole / arena.num_free == 0.75
    assert not arena.can_allocate(2)
    moves = arena.compact()
    for old, new in moves:
        cells[new.start : new.end] = cells[old.start : old.end]
    assert moves == [(Piece(2, 1), Piece(1, 1)), (Piece(4, 1), Piece(2, 1)), (Piece(6, 1), (3, 1))]
    assert cells[:4] == list("abcd")
    assert arena.pieces[0] is pieces[0], "a piece that stays keeps its handle"
    with pytest.raises(ValueError, match="not handed out"):
        arena.free(pieces[2])
    assert arena.allocate(4) == Piece(4, 4)
    assert arena.compact() == []


def test_the_largest_hole_decides_and_not_the_total():
    """Public case FR-3: 60 free in holes of 20, 40 free in one piece, and a request of 30."""
    a, b = Arena(120), Arena(120)
    pieces = [a.allocate(20) for _ in range(6)]
    for piece in pieces[::2]:
        a.free(piece)
    b.allocate(80)
    assert (a.num_free, b.num_free) == (60, 40)
    before = deepcopy(vars(a))
    with pytest.raises(OutOfBlocks):
        a.allocate(30)
    assert vars(a) == before, "the attempt left no trace"
    fits = [arena for arena in (a, b) if arena.can_allocate(30)]
    assert fits == [b] and b.allocate(30) == Piece(80, 30)


@pytest.mark.parametrize(
    "spoil, named",
    [
        (lambda arena: arena._holes.append(Piece(5, 1)), "overlap"),
        (lambda arena: arena._holes.pop(), "lost"),
        (lambda arena: arena._holes.__setitem__(slice(0, 1), [Piece(3, 2), Piece(5, 4)]), "touch"),
        (lambda arena: arena._asked.update({0: 4}), "too small for its request"),
        (lambda arena: arena._asked.clear(), "without its request"),
    ],
)
def test_check_names_what_is_broken(spoil, named):
    arena = Arena(9)
    arena.allocate(3)
    arena.check()
    spoil(arena)
    with pytest.raises(AssertionError, match=named):
        arena.check()


class ArenaMachine(CellsMachine):
    FIT = staticmethod(first_fit)

    def __init__(self):
        super().__init__()
        self.begin(Arena(24, fit=self.FIT))

    def runs(self):
        """The runs of free cells, found by looking at each cell."""
        text = "".join("." if cell is None else "x" for cell in self.cells)
        return [
            Piece(i, len(text[i:]) - len(text[i:].lstrip(".")))
            for i in range(len(text))
            if text[i] == "." and (i == 0 or text[i - 1] == "x")
        ]

    def starts(self, size):
        hole = self.FIT(self.runs(), size)
        return [] if hole is None else [hole.start]

    def stays(self, old, size):
        room = self.cells[old.end : old.start + size] == [None] * (size - old.size)
        return size <= old.size or (old.start + size <= self.arena.size and room)

    @rule()
    def compact(self):
        named = {piece: (name, size) for name, (piece, size) in self.live.items()}
        for old, new in self.arena.compact():
            self.cells[new.start : new.end] = self.cells[old.start : old.end]
            name, size = named[old]
            self.live[name] = (new, size)
        held = sum(piece.size for piece, _ in self.live.values())
        self.cells[held:] = [None] * (self.arena.size - held)
        for name, (piece, _) in self.live.items():
            assert self.cells[piece.start : piece.end] == [(name, i) for i in range(piece.size)]

    @invariant()
    def holes_are_the_runs_of_free_cells_and_nothing_is_lost_in_a_piece(self):
        assert list(self.arena.holes) == self.runs()
        assert self.arena.largest_hole == max((run.size for run in self.runs()), default=0)
        for next_size in (1, 4, 25):
            parts = self.arena.split(next_size)
            free = sum(run.size for run in self.runs() if run.size >= next_size)
            assert (parts.used, parts.free) == (self.arena.size - self.arena.num_free, free)
            assert parts.internal_fragmentation == parts.reservation == 0


class BestFitMachine(ArenaMachine):
    FIT = staticmethod(best_fit)


TestArenaMachine = ArenaMachine.TestCase
TestBestFitMachine = BestFitMachine.TestCase
