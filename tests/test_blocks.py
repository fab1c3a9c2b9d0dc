"""The block pool: one state for each block, shares counted, the cheapest loss reused first."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.blocks import BlockPool
from kvlib.plan import OutOfBlocks


def test_what_cannot_be_had_whole_is_refused_with_numbers():
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks, 1 free of 4"):
        pool.allocate(2)
    assert pool.num_free == 1 and pool.allocate(1) == [3]


def test_a_shared_block_is_free_when_the_last_lets_go():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.share([block])
    pool.free([block])
    assert (pool.ref_count(block), pool.num_free, pool.num_held) == (1, 1, 1)
    pool.free([block])
    assert (pool.ref_count(block), pool.num_free, pool.num_held) == (0, 2, 0)


@pytest.mark.parametrize("again", [[0], [1, 0], [1, 1]])
def test_a_second_free_is_refused_and_takes_nothing(again):
    pool = BlockPool(2)
    pool.allocate(2)
    pool.free([0])
    with pytest.raises(ValueError, match="freed before"):
        pool.free(again)
    assert (pool.ref_count(0), pool.ref_count(1)) == (0, 1)
    pool.check()


@pytest.mark.parametrize("block_id", [-1, 4, 1.0, True, None])
def test_a_block_that_is_not_there_is_refused(block_id):
    pool = BlockPool(4)
    for call in (
        lambda: pool.free([block_id]),
        lambda: pool.share([block_id]),
        lambda: pool.ref_count(block_id),
        lambda: pool.has_content(block_id),
        lambda: pool.mark(block_id),
        lambda: pool.unmark(block_id),
    ):
        with pytest.raises(ValueError, match="blocks are 0 to 3"):
            call()
    assert pool.null_block_id == 4 and pool.num_free == 4


def test_blocks_without_content_go_first_and_content_in_order_of_age():
    lost = []
    pool = BlockPool(5, on_evict=lost.append)
    a, b, c, d, _ = pool.allocate(5)
    for block in (a, b, c):
        pool.mark(block)
    pool.free([b])
    pool.free([d])
    pool.free([a, c])
    assert (pool.num_free, pool.num_kept) == (4, 3)
    assert pool.allocate(1) == [d] and lost == []
    assert pool.allocate(3) == [b, c, a] and lost == [b, c, a]


def test_the_tail_of_a_chain_is_evicted_before_its_root():
    pool = BlockPool(3)
    chain = pool.allocate(3)
    for block in chain:
        pool.mark(block)
    pool.free(chain)
    assert pool.allocate(3) == chain[::-1]


def test_content_in_the_middle_of_the_line_comes_back_to_life():
    lost = []
    pool = BlockPool(3, on_evict=lost.append)
    for block in pool.allocate(3):
        pool.mark(block)
    pool.free([2, 1, 0])
    pool.share([1])
    assert (pool.ref_count(1), pool.num_free) == (1, 2)
    with pytest.raises(OutOfBlocks, match="asked for 3 blocks, 2 free of 3"):
        pool.allocate(3)
    assert pool.allocate(2) == [0, 2] and lost == [0, 2]


def test_a_free_block_without_content_is_nothing_to_share():
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(ValueError, match="free and empty"):
        pool.share([0, 1])
    assert pool.ref_count(0) == 1


def test_content_that_is_gone_is_announced_once():
    lost = []
    pool = BlockPool(1, on_evict=lost.append)
    pool.allocate(1)
    pool.mark(0)
    assert pool.has_content(0)
    pool.unmark(0)
    assert not pool.has_content(0)
    pool.unmark(0)
    pool.free([0])
    assert lost == [0] and pool.num_kept == 0 and pool.allocate(1) == [0] and lost == [0]


def test_only_a_held_block_can_be_marked():
    with pytest.raises(ValueError, match="only a held block"):
        BlockPool(1).mark(0)


@pytest.mark.parametrize("count", [-1, 1.5, True])
def test_counts_are_whole_numbers(count):
    with pytest.raises((TypeError, ValueError), match="num_blocks must be"):
        BlockPool(4).allocate(count)
    with pytest.raises((TypeError, ValueError), match="num_blocks must be"):
        BlockPool(4).can_allocate(count)
    with pytest.raises((TypeError, ValueError), match="num_blocks must be"):
        BlockPool(0)


@pytest.mark.parametrize(
    "block_ids, answer",
    [
        ([0], True),
        ([2, 0], True),
        ([], False),
        ([0, 0], False),
        ([0, 3], False),
        ([0, 4], False),
        ([-1, 0], False),
        ([True, 0], False),
        ([1.0], False),
    ],
)
def test_blocks_that_are_held_each_once(block_ids, answer):
    """Blocks 0 to 2 of 4 are held; then 3, too, which an index of -1 would find."""
    pool = BlockPool(4)
    pool.allocate(3)
    assert pool.held_once(block_ids) is answer
    pool.allocate(1)
    assert pool.held_once(block_ids) is (answer or block_ids == [0, 3])


def test_blocks_may_come_one_at_a_time():
    pool = BlockPool(2)
    pool.allocate(2)
    pool.share(iter([0, 1]))
    pool.free(iter([0, 1]))
    assert [pool.ref_count(block) for block in range(2)] == [1, 1]


def test_as_many_blocks_as_are_free_can_be_had_and_no_more():
    pool = BlockPool(4)
    pool.allocate(1)
    assert [pool.can_allocate(n) for n in range(5)] == [True, True, True, True, False]


class PoolMachine(RuleBasedStateMachine):
    """Random holders against a model: who holds what, and the free blocks in their order."""

    def __init__(self):
        super().__init__()
        self.lost = []
        self.pool = BlockPool(6, on_evict=self.lost.append)
        self.held, self.content = [], set()
        self.empty, self.kept = list(range(5, -1, -1)), []

    @rule(count=st.integers(0, 4))
    def allocate(self, count):
        if count > len(self.empty) + len(self.kept):
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count)
            return
        expected = [self.empty.pop() if self.empty else self.kept.pop(0) for _ in range(count)]
        assert self.pool.allocate(count) == expected
        self.content -= set(expected)
        self.held += expected

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data):
        chain = data.draw(st.lists(st.sampled_from(self.held), unique=True))
        self.pool.free(chain)
        for block in reversed(chain):
            self.held.remove(block)
            if block not in self.held:
                (self.kept if block in self.content else self.empty).append(block)

    @rule(block=st.integers(0, 5))
    def share(self, block):
        if block in self.empty:
            with pytest.raises(ValueError):
                self.pool.share([block])
            return
        self.pool.share([block])
        self.held.append(block)
        if block in self.kept:
            self.kept.remove(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def mark(self, data):
        block = data.draw(st.sampled_from(self.held))
        self.pool.mark(block)
        self.content.add(block)

    @rule(block=st.integers(0, 5))
    def unmark(self, block):
        self.pool.unmark(block)
        self.content.discard(block)
        if block in self.kept:
            self.kept.remove(block)
            self.empty.append(block)

    @invariant()
    def free_and_held_make_all(self):
        self.pool.check()
        assert [self.pool.ref_count(b) for b in range(6)] == [self.held.count(b) for b in range(6)]
        assert self.pool.num_free == len(self.empty) + len(self.kept)
        assert self.pool.num_kept == len(self.kept)
        assert self.pool.num_held == len(set(self.held))


TestPoolMachine = PoolMachine.TestCase
