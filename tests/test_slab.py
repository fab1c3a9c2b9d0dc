"""The slab pool: chunks of one size, no hole too small, and what that costs."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from allocator_machine import CellsMachine
from kvlib.allocator import Piece
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.slab import SlabPool


def test_ten_tiny_requests_take_ten_chunks_and_950_of_1000():
    pool = SlabPool(1000, 100)
    for _ in range(10):
        pool.allocate(5)
    parts = pool.split(next_size=5)
    assert (parts.used, parts.internal_fragmentation, parts.free) == (50, 950, 0)
    with pytest.raises(OutOfBlocks, match="asked for 5, 0 chunks free of 10, each of 100"):
        pool.allocate(5)


def test_more_than_a_chunk_is_refused_for_ever_with_everything_free():
    pool = SlabPool(1000, 100)
    mine = pool.allocate(7)
    for call in (pool.allocate, lambda size: pool.resize(mine, size)):
        with pytest.raises(
            SequenceTooLong, match="asked for 101 in one piece, at most 100 of 1000"
        ):
            call(101)
    assert not pool.can_allocate(101)
    assert (pool.pieces, pool.asked(mine)) == ((mine,), 7)


def test_the_remainder_is_free_and_always_external_fragmentation():
    pool = SlabPool(999, 100)
    assert (pool.num_chunks, pool.num_free) == (9, 999)
    assert [pool.piece_size(n) for n in (1, 100)] == [100, 100]
    assert pool.holes[-1] == Piece(900, 99)
    for next_size in (1, 99, 100):
        assert pool.split(next_size).external_fragmentation == 99
    assert pool.split(next_size=101).external_fragmentation == 999
    for _ in range(9):
        pool.allocate(1)
    assert (pool.num_free, pool.largest_hole, pool.can_allocate(1)) == (99, 0, False)


def test_every_other_chunk_free_serves_whatever_fits_a_chunk():
    pool = SlabPool(80, 10)
    pieces = [pool.allocate(10) for _ in range(8)]
    for piece in pieces[1::2]:
        pool.free(piece)
    assert pool.split(next_size=10).external_fragmentation == 0
    assert [pool.allocate(10).size for _ in range(4)] == [10] * 4


def test_resize_within_the_chunk_moves_nothing():
    pool = SlabPool(40, 10)
    piece = pool.allocate(3)
    assert pool.resize(piece, 9) == piece
    assert pool.asked(piece) == 9
    assert pool.split(next_size=1).internal_fragmentation == 1


def test_freed_twice_or_never_handed_out_is_refused():
    pool = SlabPool(40, 10)
    piece = pool.allocate(3)
    pool.free(piece)
    again = pool.allocate(3)
    assert again == piece
    for stranger in (piece, Piece(0, 10), Piece(10, 10), -1):
        with pytest.raises(ValueError, match="not handed out"):
            pool.free(stranger)
    assert pool.pieces == (again,)


def test_sizes_that_make_no_pool_are_refused():
    with pytest.raises(ValueError, match="not one chunk of 11 fits into 10"):
        SlabPool(10, 11)
    for size in (0, -1, 1.5, True):
        for call in (lambda n: SlabPool(9, n), lambda n: SlabPool(n, 1), SlabPool(9, 3).allocate):
            with pytest.raises((TypeError, ValueError), match="size must be"):
                call(size)


@pytest.mark.parametrize(
    "spoil, named",
    [
        (lambda pool: pool._chunks.append(0), "overlap"),
        (lambda pool: pool._chunks.pop(), "gap"),
        (lambda pool: pool._chunks.append(pool._chunks[0]), "overlap"),
        (lambda pool: pool._chunks.__setitem__(0, 35), "gap"),
    ],
)
def test_check_names_what_is_broken(spoil, named):
    pool = SlabPool(42, 10)
    pool.allocate(3)
    pool.check()
    spoil(pool)
    with pytest.raises(AssertionError, match=named):
        pool.check()


class SlabMachine(CellsMachine):
    """A request fits where a chunk is free, if it is no larger than one."""

    SIZES = st.integers(1, 6) | st.integers(1, 20)

    @initialize(size=st.integers(1, 50), data=st.data())
    def start(self, size, data):
        self.begin(SlabPool(size, data.draw(st.integers(1, size))))

    def wide(self, size):
        return self.arena.chunk_size

    def never(self, size):
        return size > self.arena.chunk_size

    def starts(self, size):
        chunk = self.arena.chunk_size
        starts = range(0, chunk * self.arena.num_chunks, chunk)
        return [at for at in starts if not self.never(size) and self.cells[at] is None]

    def stays(self, old, size):
        return not self.never(size)

    @invariant()
    def what_a_chunk_has_too_much_is_lost_inside_and_the_rest_outside(self):
        pool, chunk = self.arena, self.arena.chunk_size
        assert pool.num_free == sum(hole.size for hole in pool.holes)
        asked = sum(size for _, size in self.live.values())
        parts = pool.split(next_size=1)
        assert (parts.used, parts.internal_fragmentation) == (asked, chunk * len(self.live) - asked)
        assert parts.external_fragmentation == pool.size % chunk


TestSlabMachine = SlabMachine.TestCase
