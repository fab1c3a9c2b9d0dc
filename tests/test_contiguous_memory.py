"""A piece for each request: what it holds, what it costs, and what a check finds."""

import pytest

from kvlib.arena import Arena
from kvlib.buddy import BuddyArena
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.plan import OutOfBlocks
from kvlib.request import Request
from kvlib.served import ServedRequest


def job(num_tokens, order=0, **changes):
    request = Request(order, None, num_tokens, 4)
    limit = num_tokens + 4
    return ServedRequest(request, order, 0.0, limit, limit, num_tokens=num_tokens, **changes)


def counts(memory):
    return memory.size, memory.most, memory.num_free, memory.num_held, memory.num_kept


def test_a_memory_is_counted_in_whole_pieces():
    """A buddy of 16 gives 4 to a request of 3; the largest piece left is 8."""
    memory, each = ContiguousMemory(BuddyArena(16)), job(3)
    assert counts(memory) == (16, 16, 16, 0, 0)
    assert (memory.rounded(3), memory.cost(each, 3), memory.cost(each, 5)) == (4, 4, 8)
    assert memory.cached_tokens(each) == 0
    memory.start(each, 3)
    assert counts(memory) == (16, 16, 8, 4, 0)
    memory.check()
    memory.stop(each)
    assert counts(memory) == (16, 16, 16, 0, 0)
    memory.check()


def test_a_piece_begins_empty_and_leaves_nothing_behind():
    memory, each = ContiguousMemory(Arena(9)), job(3, num_computed=7, num_cached=7)
    memory.start(each, 5)
    assert (each.piece.size, each.room, each.num_computed, each.num_cached) == (5, 5, 0, 0)
    each.num_computed = 4
    memory.index(each)
    memory.check()
    memory.stop(each)
    assert (each.piece, each.room, each.num_computed) == (None, 0, 0)


def test_a_piece_never_grows_and_a_refusal_changes_nothing():
    memory, each, other = ContiguousMemory(Arena(9)), job(3), job(5, 1)
    assert not memory.grows
    memory.start(each, 5)
    memory.grow(each, 4)
    memory.grow(each, 5)
    with pytest.raises(OutOfBlocks, match="asked for 6 tokens in a piece of 5"):
        memory.grow(each, 6)
    with pytest.raises(OutOfBlocks):
        memory.start(other, 5)
    assert (other.piece, other.room, each.room, memory.num_free) == (None, 0, 5, 4)
    memory.check()


@pytest.mark.parametrize(("asked", "stranded"), [(1, 0), (2, 0), (3, 2), (4, 5)])
def test_holes_that_are_too_small_are_stranded(asked, stranded):
    """Holes of 2 and 3."""
    memory = ContiguousMemory(Arena(9))
    jobs = [job(2), job(2, 1), job(3, 2), job(2, 3)]
    for each in jobs:
        memory.start(each, each.num_tokens)
    for each in jobs[::2]:
        memory.stop(each)
    assert memory.stranded(asked) == stranded


def of_two():
    memory = ContiguousMemory(Arena(9))
    for order in (0, 1):
        memory.start(job(3, order), 4)
    return memory, [*sorted(memory._live, key=lambda each: each.order)]


def test_all_of_a_piece_may_be_computed_or_nothing():
    memory, (one, _) = of_two()
    one.num_computed = 4
    memory.check()


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda memory, one: setattr(one, "room", 5), r"0: computed, room, piece are \(0, 5, 4\)"),
        (lambda memory, one: setattr(one, "num_computed", 5), r"piece are \(5, 4, 4\)"),
        (lambda memory, one: setattr(one, "num_computed", -1), r"piece are \(-1, 4, 4\)"),
        (lambda memory, one: memory._live.discard(one), "1 requests hold .* handed out are"),
        (lambda memory, one: memory.allocator.free(one.piece), "2 requests hold"),
        (lambda memory, one: memory.allocator._holes.pop(), "units lost"),
    ],
)
def test_a_check_finds_what_is_wrong(spoil, found):
    memory, (one, _) = of_two()
    memory.check()
    spoil(memory, one)
    with pytest.raises(AssertionError, match=found):
        memory.check()
