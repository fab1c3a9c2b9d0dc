"""What an engine must copy: nothing is forgotten, nothing that is shared is written."""

import pytest

from kvlib.content import TokenContent
from kvlib.plan import OutOfBlocks
from kvlib.request import Request
from kvlib.scheduled_memory import EngineMemory
from kvlib.served import ServedRequest


def job(num_tokens, order=0, token_ids=None, size=4):
    content = TokenContent(token_ids, size) if token_ids else None
    request = Request(order, None, num_tokens, 9)
    limit = num_tokens + 9
    return ServedRequest(request, order, 0.0, limit, limit, content, num_tokens=num_tokens)


def computed(memory, num_tokens, order=0, token_ids=None):
    each = job(num_tokens, order, token_ids)
    memory.start(each, num_tokens)
    each.num_computed = num_tokens
    memory.index(each)
    return each


@pytest.mark.parametrize(
    ("num_tokens", "shared", "copied"), [(3, 0, 3), (4, 1, 0), (5, 1, 1), (8, 2, 0), (11, 2, 3)]
)
def test_a_fork_shares_whole_blocks_and_copies_the_rest(num_tokens, shared, copied):
    memory = EngineMemory(16, 4)
    parent = computed(memory, num_tokens)
    child = job(num_tokens + 1, 1)
    memory.fork(parent, child, num_tokens)
    assert memory.cached_tokens(child) == num_tokens
    free = memory.num_free
    cost = memory.cost(child, num_tokens + 1)
    memory.start(child, num_tokens + 1)
    assert free - memory.num_free == cost == 4 * (-(-(num_tokens + 1) // 4) - shared)
    assert child.block_ids[:shared] == parent.block_ids[:shared]
    assert not set(child.block_ids[shared:]) & set(parent.block_ids)
    assert child.num_computed == child.num_cached == num_tokens
    moves = [(move.kind, move.blocks, move.num_tokens) for move in memory.moves]
    blocks = ((parent.block_ids[shared], child.block_ids[shared]),) if copied else ()
    assert moves == ([("copy", blocks, copied)] if copied else [])
    memory.check()


def test_a_fork_of_one_that_has_left_finds_what_the_index_knows():
    memory = EngineMemory(16, 4)
    text = list(range(11))
    parent = computed(memory, 11, 0, text)
    child = job(12, 1, [*text, 50])
    memory.fork(parent, child, 11)
    memory.stop(parent)
    assert memory.cached_tokens(child) == 8
    memory.start(child, 12)
    assert child.num_computed == 8 and not memory.moves
    memory.check()


def test_a_fork_does_not_trust_a_parent_that_computes_again():
    memory = EngineMemory(16, 4, prefix_caching=False)
    parent, child = computed(memory, 11), job(12, 1)
    memory.fork(parent, child, 11)
    memory.stop(parent)
    memory.start(parent, 11)
    memory.start(child, 12)
    assert child.num_computed == 0 and not memory.moves


def test_a_fork_does_not_build_upon_bytes_that_are_still_on_the_host():
    """Their copy may fail, and its request with it; the fork would go on with what lay there."""
    memory = EngineMemory(16, 4, prefix_caching=False)
    parent, child = computed(memory, 6), job(7, 1)
    memory.fork(parent, child, 6)
    parent.num_swapped = 6
    memory.stop(parent)
    memory.start(parent, 6)
    parent.num_computed = 6
    assert memory.cached_tokens(child) == 0
    memory.moves.clear()
    assert memory.cached_tokens(child) == 6


def test_a_fork_starts_once_from_its_parent():
    """Preempted, it has tokens of its own behind; its parent's blocks would be the wrong ones."""
    memory = EngineMemory(16, 4, prefix_caching=False)
    parent, child = computed(memory, 6), job(7, 1)
    memory.fork(parent, child, 6)
    memory.start(child, 7)
    memory.moves.clear()
    memory.stop(child)
    memory.start(child, 7)
    assert child.num_computed == 0 and not memory.moves
    memory.check()


def test_a_fork_that_finds_no_room_still_waits():
    memory = EngineMemory(3, 4)
    parent, child = computed(memory, 7), job(8, 1)
    other = computed(memory, 2, 2)
    memory.fork(parent, child, 7)
    with pytest.raises(OutOfBlocks):
        memory.start(child, 8)
    memory.check()
    assert not memory.moves
    memory.stop(other)
    memory.start(child, 8)
    assert child.num_computed == 7 and len(memory.moves) == 1


def test_a_fork_needs_a_token_to_compute():
    memory = EngineMemory(3, 4)
    with pytest.raises(ValueError, match="a fork of 7 tokens needs more, it has 7"):
        memory.fork(computed(memory, 7), job(7, 1), 7)


def test_a_fork_of_no_token_finds_nothing_and_one_of_fewer_than_none_is_refused():
    memory = EngineMemory(8, 4)
    parent, child = computed(memory, 6), job(7, 1)
    for wrong, error in [(-1, ValueError), (1.0, TypeError)]:
        with pytest.raises(error, match="num_tokens must be"):
            memory.fork(parent, child, wrong)
    memory.fork(parent, child, 0)
    assert memory.cached_tokens(child) == 0
    memory.start(child, 7)
    assert (child.num_computed, [*memory.moves]) == (0, [])
    memory.check()


def test_other_requests_moves_keep_nobody_from_a_parent():
    memory = EngineMemory(16, 4, prefix_caching=False)
    parent, other, child = computed(memory, 6), computed(memory, 6, 1), job(7, 2)
    other.num_swapped = 6
    memory.stop(other)
    memory.fork(parent, child, 6)
    assert memory.cached_tokens(child) == 6


def test_who_is_forgotten_forks_from_nobody():
    memory = EngineMemory(16, 4, prefix_caching=False)
    parent, child = computed(memory, 6), job(7, 1)
    memory.fork(parent, child, 6)
    memory.forget(child)
    assert memory.cached_tokens(child) == 0


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda memory, a, b: memory.pool._empty.popitem(), "a block is lost"),
        (lambda memory, a, b: memory._forks.update({b: (a, 2)}), "still waits for its parent"),
    ],
)
def test_a_check_finds_what_is_wrong(spoil, found):
    memory = EngineMemory(8, 4)
    a, b = computed(memory, 6), computed(memory, 6, 1)
    memory.fork(a, job(7, 2), 6)
    memory.check()
    spoil(memory, a, b)
    with pytest.raises(AssertionError, match=found):
        memory.check()


def test_a_swap_names_the_blocks_that_it_leaves_and_those_it_comes_back_to():
    memory = EngineMemory(4, 4, prefix_caching=False)
    each = computed(memory, 6)
    left = [*each.block_ids]
    each.num_swapped = 6
    memory.stop(each)
    other = computed(memory, 3, 1)
    memory.start(each, 9)
    out, back = memory.moves
    assert (out.kind, out.blocks, out.num_tokens) == ("out", tuple(enumerate(left)), 6)
    assert (back.kind, back.num_tokens) == ("in", 6)
    assert back.blocks == tuple(enumerate(each.block_ids[:2])) and len(each.block_ids) == 3
    assert other.block_ids[0] in left


def test_what_is_found_in_memory_is_not_overwritten_from_the_host():
    memory = EngineMemory(6, 4)
    text = list(range(10))
    each = computed(memory, 10, 0, text)
    each.num_swapped = 10
    memory.stop(each)
    memory.start(each, 10)
    assert each.num_cached == 8
    back = memory.moves[-1]
    assert back.blocks == ((2, each.block_ids[2]),) and back.num_tokens == 2


def test_where_more_is_found_than_was_swapped_nothing_comes_back():
    """It went out with 3 of its tokens, and another computed 8 of them since."""
    memory = EngineMemory(6, 4)
    text = list(range(10))
    each = job(10, 0, text)
    memory.start(each, 10)
    each.num_computed = each.num_swapped = 3
    memory.stop(each)
    memory.stop(computed(memory, 10, 1, text))
    memory.start(each, 10)
    assert each.num_cached == 8
    assert [(m.kind, m.blocks, m.num_tokens) for m in memory.moves][1:] == [("in", (), 0)]


def test_who_loses_memory_without_a_swap_is_not_copied():
    memory = EngineMemory(6, 4)
    memory.stop(computed(memory, 6))
    assert not memory.moves


def test_of_a_request_that_is_forgotten_nothing_is_copied():
    memory, told = EngineMemory(8, 4, prefix_caching=False), []
    memory.on_forget = told.append
    one, two = computed(memory, 6), computed(memory, 6, 1)
    for each in (one, two):
        each.num_swapped = 6
        memory.stop(each)
    line = memory.moves
    memory.forget(one)
    assert [move.job for move in memory.moves] == [two] and told == [one]
    assert memory.moves is line  # whoever carries it out holds it
