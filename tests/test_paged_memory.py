"""Blocks behind an allocator's questions: any hole serves, nothing moves, nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.paged_memory import PagedMemory
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.waste import MemorySplit


def state(memory):
    return memory.num_free, memory.split(1), [(tuple(p.block_ids), p.asked) for p in memory.pieces]


def test_every_other_block_free_has_room_for_all_of_them():
    """An arena in the same state refuses three units; see test_arena."""
    memory = PagedMemory(8, block_size=1)
    pieces = [memory.allocate(1) for _ in range(8)]
    for piece in pieces[::2]:
        memory.free(piece)
    assert memory.can_allocate(4) and not memory.can_allocate(5)
    assert memory.allocate(4).block_ids != [0, 1, 2, 3]
    memory.check()


def test_a_piece_grows_in_place_by_one_block_and_stays_the_same_object():
    memory = PagedMemory(4, block_size=4)
    a, b = memory.allocate(3), memory.allocate(4)
    assert (a.size, memory.grown(a), memory.grown(b)) == (4, 8, 8)
    start = a.start
    assert memory.resize(a, memory.grown(a)) is a
    assert (a.start, a.size, len(set(a.block_ids + b.block_ids))) == (start, 8, 3)
    memory.resize(a, 1)
    assert (a.size, memory.num_free) == (4, 8)
    memory.check()


def test_free_blocks_are_never_external_fragmentation():
    """Blocks of 4, 3 and 5 units asked for: 4 of the 12 slots held are unfilled."""
    memory = PagedMemory(4, block_size=4)
    memory.allocate(3), memory.allocate(5)
    for next_size in (1, 4, 5, 16, 99):
        parts = memory.split(next_size)
        assert (parts.used, parts.internal_fragmentation) == (8, 4)
        assert (parts.external_fragmentation, parts.free) == (0, 4)


def test_who_has_blocks_enough_has_room():
    """So in `simulate` nobody ever waits with room: enough free units are enough free blocks."""
    memory = PagedMemory(5, block_size=3)
    for size in range(1, 16):
        assert memory.can_allocate(size) == (memory.num_free >= size)
    memory.allocate(4)
    for size in range(1, 16):
        assert memory.can_allocate(size) == (memory.num_free >= size)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, a: m.allocate(7), OutOfBlocks, "asked for 4 blocks, 3 free of 4"),
        (lambda m, a: m.allocate(9), SequenceTooLong, "asked for 9, at most 8 could ever"),
        (lambda m, a: m.allocate(0), ValueError, "size must be at least 1"),
        (lambda m, a: m.resize(a, 9), SequenceTooLong, "asked for 9, at most 8"),
        (lambda m, a: m.resize(a, 0), ValueError, "size must be at least 1"),
        (lambda m, a: m.split(0), ValueError, "next_size must be at least 1"),
        (lambda m, a: m.can_allocate(0.5), TypeError, "size must be a whole number"),
        (lambda m, a: m.free(PagedMemory(1, 2).allocate(1)), ValueError, "not handed out"),
    ],
)
def test_a_refused_call_changes_nothing(call, error, message):
    memory = PagedMemory(4, block_size=2)
    a = memory.allocate(2)
    before = state(memory)
    with pytest.raises(error, match=message):
        call(memory, a)
    assert state(memory) == before
    memory.check()


def test_growing_without_a_free_block_leaves_the_piece_as_it_is():
    memory = PagedMemory(2, block_size=2)
    a, _ = memory.allocate(2), memory.allocate(1)
    before = state(memory)
    with pytest.raises(OutOfBlocks, match="asked for 1 blocks, 0 free of 2"):
        memory.resize(a, memory.grown(a))
    assert state(memory) == before


def test_a_piece_is_freed_once():
    memory = PagedMemory(2, block_size=2)
    a = memory.allocate(2)
    memory.free(a)
    again = memory.allocate(2)
    assert again.block_ids == a.block_ids
    for call in (memory.free, lambda piece: memory.resize(piece, 4)):
        with pytest.raises(ValueError, match="not handed out: freed before"):
            call(a)


@pytest.mark.parametrize("bad", [(0, 16), (4, 0)])
def test_sizes_are_whole_numbers_of_at_least_one(bad):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        PagedMemory(*bad)


@given(
    block_size=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 20))),
)
def test_any_run_of_calls_keeps_the_books(block_size, steps):
    memory, asked = PagedMemory(6, block_size), {}
    for kind, which, size in steps:
        pieces = list(asked)
        piece = pieces[which % len(pieces)] if pieces else None
        try:
            if kind == 0 or piece is None:
                asked[memory.allocate(size)] = size
            elif kind == 1:
                asked[memory.resize(piece, size)] = size
            else:
                memory.free(piece)
                del asked[piece]
        except (OutOfBlocks, SequenceTooLong):
            pass
        memory.check()
        assert {p: p.asked for p in memory.pieces} == asked
        assert memory.split(1).used == sum(asked.values())
        assert memory.num_free + sum(p.size for p in asked) == memory.size


def test_a_memory_is_counted_in_whole_blocks():
    memory = PagedMemory(4, block_size=3)
    assert (memory.size, memory.largest_request, memory.num_free, memory.pieces) == (12, 12, 12, ())
    assert [memory.piece_size(n) for n in (1, 3, 4, 12)] == [3, 3, 6, 12]
    a, b = memory.allocate(4), memory.allocate(5)
    assert (memory.num_free, memory.pieces, a.size, b.asked) == (0, (a, b), 6, 5)
    assert (a.start, b.start) == (0, 6)
    assert memory.split(1) == MemorySplit(12, 9, 0, 3, 0, 0)
    memory.free(a)
    assert memory.split(1) == MemorySplit(12, 5, 0, 1, 0, 6)


def test_two_pieces_of_the_same_blocks_are_two():
    """One was freed; the next has its blocks, and says the same of itself."""
    memory = PagedMemory(4, block_size=3)
    a = memory.allocate(4)
    memory.free(a)
    b = memory.allocate(4)
    assert (a.block_ids, a.asked) == (b.block_ids, b.asked) and a != b and len({a, b}) == 2
    assert not hasattr(a, "__dict__")


def test_to_ask_for_as_much_as_before_changes_the_request_alone():
    memory = PagedMemory(4, block_size=3)
    piece = memory.allocate(4)
    blocks = [*piece.block_ids]
    for size in (6, 5, 4):
        assert memory.resize(piece, size) is piece
        assert (piece.block_ids, piece.asked, memory.split(1).used) == (blocks, size, size)
        memory.check()


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda memory, a, b: memory.pool._empty.popitem(), "a block is lost"),
        (lambda memory, a, b: b.block_ids.__setitem__(0, a.block_ids[0]), "in two pieces, or none"),
        (lambda memory, a, b: b.block_ids.pop(), "in two pieces, or none"),
        (lambda memory, a, b: memory.pool.share(a.block_ids[:1]), "a shared block"),
        (lambda memory, a, b: setattr(a, "asked", 7), "does not fit its request"),
        (lambda memory, a, b: setattr(a, "asked", 5), "requests miscounted"),
    ],
)
def test_a_check_finds_what_is_wrong(spoil, found):
    memory = PagedMemory(6, block_size=3)
    a, b = memory.allocate(4), memory.allocate(2)
    memory.check()
    spoil(memory, a, b)
    with pytest.raises(AssertionError, match=found):
        memory.check()
