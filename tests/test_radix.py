"""The radix tree: nodes split where sequences part, ends go first, a path is held as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.blocks import BlockPool
from kvlib.content import TokenContent
from kvlib.radix import RadixTree
from kvlib.retention import RankedFIFO, RankedLFU, RankedLRU
from prefix_cases import Sequence
from test_checks import found


def tree(num_blocks=20, policy=None):
    pool = BlockPool(num_blocks)
    return pool, RadixTree(pool, policy)


def runs(index):
    """Every node's content, each beside its parent's."""
    return sorted((node.parent.contents, node.contents) for node in index.nodes)


def test_a_node_is_split_where_two_sequences_part():
    pool, index = tree()
    Sequence(pool, index, [1, 2, 3, 4])
    assert len(index.nodes) == 1
    Sequence(pool, index, [1, 2, 9])
    assert runs(index) == [([], [1, 2]), ([1, 2], [3, 4]), ([1, 2], [9])]
    index.check()


def test_a_block_is_never_split():
    """Blocks of 3: [a, b, c] and [a, b, d] share nothing, and two blocks are in use."""
    pool, index = tree()
    Sequence(pool, index, [1, 2, 3, 9], 3).stop()
    other = Sequence(pool, index, [1, 2, 4, 9], 3)
    assert other.cached == 0 and len(index) == 2
    assert sorted(node.contents for node in index.nodes) == [[(1, 2, 3)], [(1, 2, 4)]]


def test_a_decoding_sequence_does_not_make_a_node_a_token():
    pool, index = tree(99)
    sequence = Sequence(pool, index, [1, 2])
    for token in range(50):
        sequence.grow(token)
    assert len(index.nodes) == 1
    second = Sequence(pool, index, [1, 2, *range(50), 7])
    assert second.cached == 52
    sequence.grow(8)
    second.grow(9)
    assert runs(index)[1:] == [
        ([1, 2, *range(50)], [7, 9]),
        ([1, 2, *range(50)], [8]),
    ]
    index.check()


@pytest.mark.parametrize("policy", [None, RankedLRU(), RankedFIFO(), RankedLFU()])
def test_a_path_in_use_is_in_use_up_to_the_root(policy):
    """Source of the case: mini-sglang's pull request 52, where the very node in use was not."""
    pool, index = tree(4, policy)
    Sequence(pool, index, [1, 2]).stop()
    user = Sequence(pool, index, [1, 2, 3, 4])
    assert [pool.ref_count(block) for block in user.blocks] == [1, 1, 1, 1]
    index.make_room(4)
    assert len(index) == 4 and pool.num_free == 0
    user.stop()
    index.make_room(4)
    pool.allocate(4)
    assert len(index) == 0 and index.nodes == []
    index.check()


def test_a_leaf_that_was_shared_since_it_was_idle_is_not_given_up():
    pool, index = tree(4, RankedLRU())
    Sequence(pool, index, [1, 2], 2).stop()
    user = Sequence(pool, index, [1, 2, 3], 2)
    assert user.cached == 2
    index.make_room(4)
    assert index.find(user.content, 1) == user.blocks[:1]
    index.check()


def test_a_sequence_whose_leaf_another_has_lengthened_goes_on_where_it_was():
    pool, index = tree(9)
    maker = Sequence(pool, index, [1, 2], 2)
    other = Sequence(pool, index, [1, 2, 3], 2)
    maker.grow(5, 6)
    other.grow(7)
    assert runs(index) == [([], [(1, 2)]), ([(1, 2)], [(3, 7)]), ([(1, 2)], [(5, 6)])]
    index.check()


def test_shared_blocks_are_counted_once():
    """Free without content, idle, in use: 4 + 6 + 0, then 4 + 2 + 4 of 10."""
    pool, index = tree(10)

    def split():
        return pool.num_free - pool.num_kept, pool.num_kept, pool.num_held

    for tokens in ([1, 2, 3, 4], [1, 2, 5, 6]):
        Sequence(pool, index, tokens).stop()
    assert split() == (4, 6, 0)
    pool.share(index.find(TokenContent([1, 2, 5, 6], 1), 4))
    assert split() == (4, 2, 4)
    index.check()


def test_a_leaf_gives_up_its_end_and_no_more():
    pool, index = tree(6, RankedLRU())
    Sequence(pool, index, [1, 2, 3, 4, 5]).stop()
    index.make_room(3)
    assert runs(index) == [([], [1, 2, 3])]
    keeper = Sequence(pool, index, [1, 2, 9])
    keeper.stop()
    assert all(not node.children for node in index._policy.shown)
    pool.share(keeper.blocks)
    index.make_room(3)
    assert runs(index) == [([], [1, 2]), ([1, 2], [9])]
    assert index.find(keeper.content, 3) == keeper.blocks


def test_of_a_leaf_whose_beginning_is_in_use_the_end_is_given_up():
    pool, index = tree(2, RankedLRU())
    idle = Sequence(pool, index, [1, 2])
    pool.share(idle.blocks[:1])
    idle.stop()
    (only,) = index.nodes
    found(index, lambda each: each._policy.hide(only), "an idle leaf that cannot be evicted")
    index._policy.show(only)
    index.make_room(1)
    assert index.find(idle.content, 2) == idle.blocks[:1] and pool.num_free == 1
    index.check()


def test_a_block_at_another_place_of_the_same_text_is_something_else():
    pool, index = tree(4)
    first = Sequence(pool, index, [1, 2])
    with pytest.raises(ValueError, match=f"block {first.blocks[1]} is known as something else"):
        index.insert(TokenContent([1, 2], 1), first.blocks[::-1])
    assert runs(index) == [([], [1, 2])]
    index.check()


def test_who_begins_again_with_other_blocks_is_looked_at_from_the_root():
    pool, index = tree(4)
    content, (first, other) = TokenContent([1], 1), pool.allocate(2)
    assert index.insert(content, [first]) == 1
    assert index.insert(content, [other]) == 0
    assert index.held == (first,)
    index.check()


def test_who_leaves_makes_nothing_young_that_another_has_left_before():
    """Blocks of 2: "maker" goes on behind what both hold, and leaves first."""
    pool, index = tree(4)
    maker = Sequence(pool, index, [1, 2], 2)
    other = Sequence(pool, index, [1, 2, 3], 2)
    maker.grow(5, 6)
    maker.stop()
    later = Sequence(pool, index, [7, 8], 2)
    later.stop()
    other.stop()
    assert pool.num_kept == 3
    pool.allocate(2)  # the one that is empty, and what was left first
    assert index.find(later.content, 1) == later.blocks
    assert index.find(maker.content, 2) == maker.blocks[:1]


def test_fifo_gives_up_ends_though_their_beginnings_are_older():
    pool, index = tree(6, RankedFIFO())
    for tokens in ([1, 2], [3, 4], [1, 2, 5]):
        Sequence(pool, index, tokens).stop()
    index.make_room(3)
    left = [len(index.find(TokenContent(tokens, 1), 3)) for tokens in ([1, 2, 5], [3, 4])]
    assert left == [3, 0]


@pytest.mark.parametrize("policy", [None, RankedLFU()])
def test_what_is_added_to_another_sequences_node_has_uses_of_its_own(policy):
    pool, index = tree(9, policy)
    for _ in range(2):
        Sequence(pool, index, [1, 2]).stop()
    Sequence(pool, index, [1, 2, 3]).stop()
    Sequence(pool, index, [4]).stop()
    assert runs(index) == [([], [1, 2]), ([], [4]), ([1, 2], [3])]


@pytest.mark.parametrize("policy", [None, RankedLRU()])
def test_a_second_copy_keeps_the_first_alive_as_long_as_its_sequence(policy):
    pool, index = tree(6, policy)
    first, second = Sequence(pool, index, [1, 2]), Sequence(pool, index, [1, 2])
    assert second.cached == 1 and first.blocks[1] != second.blocks[1]
    assert index.held == (first.blocks[1],)
    second.grow(3)
    first.stop()
    index.make_room(2)
    pool.allocate(2)
    assert index.find(second.content, 3) == [*first.blocks, second.blocks[2]]
    second.stop()
    assert index.held == () and pool.num_kept == 3
    index.make_room(2)
    pool.allocate(2)
    assert index.find(second.content, 3) == first.blocks
    index.make_room(1)
    pool.allocate(1)
    assert index.find(second.content, 3) == first.blocks[:1]
    index.check()


@pytest.mark.parametrize("policy", [None, RankedLRU()])
def test_a_second_copy_is_guarded_once_though_its_sequence_starts_from_the_root_again(policy):
    """The first one lengthens the node on which the second stood, and so its place is gone."""
    pool, index = tree(9, policy)
    first, second = Sequence(pool, index, [1, 2]), Sequence(pool, index, [1, 2])
    first.grow(3)
    second.grow(3)
    assert index.held == tuple(first.blocks[1:])
    assert [pool.ref_count(block) for block in first.blocks] == [2, 2, 2]
    first.stop()
    assert [pool.ref_count(block) for block in first.blocks] == [1, 1, 1]
    index.check()
    second.stop()
    assert index.held == () and pool.num_free == 9
    index.check()


def test_what_stands_behind_a_lost_block_is_lost_with_it():
    """A block that is written again has other content; nothing reaches what was built on it."""
    pool, index = tree(9)
    sequence = Sequence(pool, index, [1, 2, 3])
    Sequence(pool, index, [1, 2, 3, 4, 5]).stop()
    Sequence(pool, index, [1, 7]).stop()
    pool.unmark(sequence.blocks[1])
    assert index.find(TokenContent([1, 2, 3, 4], 1), 4) == sequence.blocks[:1]
    assert runs(index) == [([], [1]), ([1], [7])] and pool.num_kept == 1
    index.check()
    sequence.grow(8)  # from its beginning on, for the place where it ended is gone
    index.check()


def test_what_branched_behind_a_lost_block_is_not_found_from_before_it():
    pool, index = tree(9)
    sequence = Sequence(pool, index, [1, 2, 3])
    Sequence(pool, index, [1, 2, 3, 4, 5]).stop()
    pool.unmark(sequence.blocks[1])
    assert index.find(TokenContent([1, 4, 5], 1), 3) == sequence.blocks[:1]
    assert runs(index) == [([], [1])] and pool.num_kept == 0
    index.check()


def test_a_second_copy_whose_way_is_lost_is_given_back_like_any_other():
    pool, index = tree(9)
    first, second = Sequence(pool, index, [1, 2]), Sequence(pool, index, [1, 2])
    second.grow(3)
    assert index.held == (first.blocks[1],)
    pool.unmark(first.blocks[0])
    assert len(index) == 0 and index.held == (first.blocks[1],)
    second.stop()
    first.stop()
    assert index.held == () and (pool.num_free, pool.num_kept) == (9, 0)
    index.check()


def test_a_namespace_leaves_with_its_last_block():
    pool, index = tree(3)
    for name in "abcdef":
        Sequence(pool, index, [1], extras={"tenant": name}).stop()
    assert len(index) == 3 and len(index._roots) == 3


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12))
def test_edges_are_compressed(prompts):
    """Without evictions a node ends only where sequences ended or parted."""
    pool, index = tree(99)
    for prompt in prompts:
        Sequence(pool, index, prompt).stop()
    index.check()
    known = {tuple(prompt[: i + 1]) for prompt in prompts for i in range(len(prompt))}
    assert len(index) == len(known)
    assert len(index.nodes) <= 2 * len({tuple(prompt) for prompt in prompts})
