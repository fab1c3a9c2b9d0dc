"""Memory that requests share: what is found, what it costs, and that a refusal changes nothing."""

import pytest

from kvlib.arena import Arena
from kvlib.buddy import BuddyArena
from kvlib.content import TokenContent
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.plan import OutOfBlocks
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.retention import DropAll, RankedLRU
from kvlib.served import ServedRequest

INDEXES = pytest.mark.parametrize("index", [HashIndex, RadixTree])


def job(token_ids, order=0, block_size=16, extras=None):
    """A request that waits; all its tokens are known."""
    request = Request(order, None, len(token_ids), 1, token_ids=tuple(token_ids))
    content = TokenContent(token_ids, block_size, extras or {})
    limit = len(token_ids) + 1
    return ServedRequest(request, order, 0.0, limit, limit, content, num_tokens=len(token_ids))


def run_whole(memory, each):
    """Starts a request, computes all of its tokens and stops it; returns what it found."""
    memory.start(each, each.num_tokens)
    found = each.num_cached
    each.num_computed = each.num_tokens
    memory.index(each)
    memory.stop(each)
    memory.check()
    return found


@INDEXES
def test_a_full_hit_leaves_at_least_one_token_to_compute(index):
    """Blocks of 16, each prompt twice: what vLLM's and others' crashes on empty steps were about.

    Source: vllm-project/vllm#3239.
    """
    lengths, found = [1, 15, 16, 17, 31, 32, 33], []
    for i, n in enumerate(lengths):
        memory = KVMemory(8, 16, index)
        assert run_whole(memory, job(range(1000 * i, 1000 * i + n))) == 0
        found.append(run_whole(memory, job(range(1000 * i, 1000 * i + n))))
    assert found == [0, 0, 0, 16, 16, 16, 32]


@INDEXES
@pytest.mark.parametrize(("num_free", "fits"), [(5, False), (6, True)])
def test_an_idle_block_that_is_found_is_not_counted_as_free_twice(index, num_free, fits):
    """Six blocks are needed, two of them idle hits; among five free ones only three are others.

    Source: vllm-project/vllm#11565.
    """
    memory = KVMemory(8, 16, index)
    run_whole(memory, job(range(32)))
    other = job(range(900, 900 + 16 * (8 - num_free)), order=1)
    memory.start(other, other.num_tokens)
    new = job(range(96), order=2)
    assert memory.num_free == num_free * 16
    assert memory.cached_tokens(new) == 32
    assert memory.cost(new, 96) == 96
    before = (memory.num_free, memory.num_kept, memory.cached_tokens(new))
    if fits:
        memory.start(new, 96)
        assert (new.num_cached, memory.num_free) == (32, 0)
    else:
        with pytest.raises(OutOfBlocks, match="asked for 6 blocks, 2 of them found idle, 5 free"):
            memory.start(new, 96)
        assert (memory.num_free, memory.num_kept, memory.cached_tokens(new)) == before
        assert (new.room, new.block_ids, new.num_computed) == (0, [], 0)
    memory.check()


@INDEXES
def test_room_for_fewer_tokens_than_are_found_takes_no_new_block(index):
    memory = KVMemory(8, 16, index)
    run_whole(memory, job(range(32)))
    assert (memory.num_kept, memory.stranded(5)) == (32, 0)
    again = job(range(96), order=1)
    memory.start(again, 16)
    assert (len(again.block_ids), again.num_cached, memory.num_free) == (2, 32, 96)
    memory.check()


def ranked(kind):
    return lambda pool: kind(pool, RankedLRU())


@INDEXES
def test_what_is_found_and_given_back_at_once_was_used(index):
    """It can be evicted again, and it is younger than what was not found meanwhile."""
    memory = KVMemory(3, 1, ranked(index))
    for token in (1, 2):
        run_whole(memory, job([token], token, 1))
    finder = job([1, 9], 3, 1)
    memory.start(finder, 2)
    memory.stop(finder)
    memory.check()
    memory.start(job([7, 8], 4, 1), 2)
    left = [memory.cached_tokens(job([token, 0], 5, 1)) for token in (1, 2)]
    assert left == [1, 0]


@INDEXES
def test_growth_that_is_refused_gives_up_nothing(index):
    memory = KVMemory(4, 4, ranked(index))
    grower = job([5] * 4, 1, 4)
    memory.start(grower, 4)
    run_whole(memory, job(range(8), 0, 4))
    with pytest.raises(OutOfBlocks, match="asked for 4 blocks, 3 free of 4"):
        memory.grow(grower, 20)
    assert (memory.num_kept, memory.cached_tokens(job(range(9), 2, 4))) == (8, 8)
    memory.check()


def test_growth_within_its_room_makes_no_room():
    """A policy that drops all to keep a margin empty is not asked where no block is needed."""
    memory = KVMemory(4, 4, lambda pool: HashIndex(pool, DropAll(margin=0.9)))
    grower = job([5] * 5, 1, 4)
    memory.start(grower, 5)
    run_whole(memory, job(range(4), 0, 4))
    memory.grow(grower, 8)
    assert memory.num_kept == 4


@INDEXES
def test_no_more_is_indexed_than_the_content_tells(index):
    memory, each = KVMemory(4, 2, index), job([1, 2, 3, 4, 5], 0, 2)
    memory.start(each, 8)
    each.num_computed = 8
    memory.index(each)
    memory.index(each)
    assert each.num_indexed == 2
    memory.check()


@INDEXES
def test_a_request_whose_tokens_nobody_knows_comes_and_goes(index):
    memory, each = KVMemory(4, 2, ranked(index)), job([1, 2, 3], 0, 2)
    each.content = None
    memory.start(each, 3)
    each.num_computed = 3
    memory.index(each)
    memory.stop(each)
    memory.check()
    assert (memory.num_free, memory.num_kept) == (8, 0)


def test_what_a_tree_holds_for_a_second_copy_is_counted():
    memory = KVMemory(4, 2, RadixTree)
    first, second = job([1, 2, 3], 0, 2), job([1, 2, 3], 1, 2)
    for each in (first, second):
        memory.start(each, 3)
        each.num_computed = 3
    memory.index(first)
    memory.index(second)
    assert memory.prefixes.held == (first.block_ids[0],)
    memory.check()


def test_a_refused_start_does_not_make_what_it_found_younger():
    """A was idle longer than B. A request that finds A and does not fit leaves that order."""
    memory = KVMemory(3, 1, HashIndex)
    a, b = job([1], 0, 1), job([2], 1, 1)
    run_whole(memory, a)
    run_whole(memory, b)
    with pytest.raises(OutOfBlocks):
        memory.start(job([1, 7, 8, 9], 2, 1), 4)
    other = job([5, 6], 3, 1)
    memory.start(other, 2)  # takes the empty block and the one idle longest
    assert memory.cached_tokens(job([1, 1], 4, 1)) == 0
    assert memory.cached_tokens(job([2, 2], 4, 1)) == 1


@INDEXES
def test_a_block_that_somebody_holds_costs_nothing(index):
    memory = KVMemory(8, 16, index)
    a, b = job(range(33)), job(range(40), 1)
    memory.start(a, 33)
    a.num_computed = 33
    memory.index(a)
    assert memory.cost(b, 40) == 16
    memory.start(b, 40)
    assert b.block_ids[:2] == a.block_ids[:2]
    assert (b.num_cached, b.room, memory.num_held) == (32, 48, 64)
    memory.stop(a)
    memory.check()
    assert memory.num_held == 48


@INDEXES
@pytest.mark.parametrize("size", [8, 32])
def test_content_in_other_blocks_than_the_memory_is_refused(index, size):
    """Told in blocks of 8 and looked up in 16, half a prompt would pass for the whole."""
    memory = KVMemory(8, 16, index)
    run_whole(memory, job(range(64)))
    other = job(range(64), order=1, block_size=size)
    with pytest.raises(ValueError, match=rf"blocks of {size}, the memory's hold 16"):
        memory.start(other, 64)
    with pytest.raises(ValueError, match="the memory's hold 16"):
        memory.cost(other, 64)
    memory.check()
    assert (memory.num_held, other.block_ids) == (0, [])


@INDEXES
def test_only_whole_computed_blocks_are_found(index):
    """[1, 2, 3] then 4 and 5: two blocks of two are whole. Source: neuralmagic/nm-vllm#3."""
    memory = KVMemory(9, 2, index)
    first = job([1, 2, 3, 4, 5], block_size=2)
    memory.start(first, 5)
    found = []
    for computed in range(6):
        first.num_computed = computed
        memory.index(first)
        found.append(memory.cached_tokens(job([1, 2, 3, 4, 5, 6], 1, 2)))
    assert found == [0, 0, 2, 2, 4, 4]


@INDEXES
def test_a_salt_keeps_tenants_apart(index):
    """And a salt "a" is not an adapter "a". Source: vllm-project/vllm#3264."""
    memory = KVMemory(9, 4, index)
    text = list(range(8))
    assert run_whole(memory, job(text, 0, 4, {"tenant": "a"})) == 0
    assert run_whole(memory, job(text, 1, 4, {"tenant": "b"})) == 0
    assert run_whole(memory, job(text, 2, 4, {"adapter": "a"})) == 0
    assert run_whole(memory, job(text, 3, 4)) == 0
    assert run_whole(memory, job(text, 4, 4, {"tenant": "a"})) == 4


def test_without_an_index_or_without_content_nothing_is_shared():
    memory = KVMemory(9, 4)
    run_whole(memory, job(range(8), 0, 4))
    assert run_whole(memory, job(range(8), 1, 4)) == 0
    memory = KVMemory(9, 4, HashIndex)
    run_whole(memory, job(range(8), 0, 4))
    unknown = job(range(8), 1, 4)
    unknown.content = content_of(Request(1, None, 8, 1), 4)
    assert run_whole(memory, unknown) == 0


def test_the_block_is_there_before_the_token_that_needs_it():
    """Blocks of 4, one token after the other. Source: GeeeekExplorer/nano-vllm#71."""
    memory, each, held = KVMemory(4, 4), job([7], 0, 4), []
    memory.start(each, 1)
    for n in range(1, 10):
        memory.grow(each, n)
        held.append(len(each.block_ids))
    assert held == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks, 1 free of 4"):
        memory.grow(each, 17)
    assert (len(each.block_ids), each.room, memory.num_free) == (3, 12, 4)


@pytest.mark.parametrize("make", [lambda: KVMemory(4, 2), lambda: ContiguousMemory(Arena(8))])
def test_nobody_starts_twice_or_stops_twice(make):
    memory, each = make(), job([1, 2, 3], 0, 2)
    memory.start(each, 3)
    with pytest.raises(ValueError, match="request 0 runs already"):
        memory.start(each, 3)
    assert memory.num_held == memory.rounded(3)
    memory.stop(each)
    with pytest.raises(ValueError, match="request 0 does not run"):
        memory.stop(each)
    assert memory.num_free == 8
    memory.check()


def test_one_piece_is_rounded_never_grows_and_leaves_holes():
    """Of 16, pieces of 4 and 8 leave one hole of 4: of no use to a request for 5."""
    memory = ContiguousMemory(BuddyArena(16))
    a, b = job([1] * 3, 0, 1), job([2] * 5, 1, 1)
    memory.start(a, 3)
    memory.start(b, 5)
    assert (a.room, b.room, memory.num_held, memory.num_free) == (4, 8, 12, 4)
    assert [memory.stranded(n) for n in (4, 5)] == [0, 4]
    memory.grow(a, 4)
    with pytest.raises(OutOfBlocks, match="asked for 5 tokens in a piece of 4"):
        memory.grow(a, 5)
    assert (a.room, memory.most, memory.num_kept, memory.cached_tokens(a)) == (4, 16, 0, 0)
    memory.stop(a)
    assert [memory.stranded(n) for n in (5, 9)] == [0, 8]  # the two holes of 4 have joined
    memory.check()


def test_an_allocator_with_pieces_is_refused():
    arena = Arena(8)
    arena.allocate(2)
    with pytest.raises(ValueError, match="not empty: it holds 1 pieces"):
        ContiguousMemory(arena)


@pytest.mark.parametrize(
    ("sizes", "error"), [((0, 16), ValueError), ((4, 0), ValueError), ((4.0, 16), TypeError)]
)
def test_sizes_that_cannot_be_are_refused(sizes, error):
    with pytest.raises(error):
        KVMemory(*sizes)


def test_a_leak_is_found():
    memory, each = KVMemory(4, 2), job([1, 2, 3], 0, 2)
    memory.start(each, 3)
    each.block_ids.pop()
    with pytest.raises(AssertionError, match="references to"):
        memory.check()
