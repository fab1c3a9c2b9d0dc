"""A sequence's blocks: boundaries, sharing, copies before writes, and going back."""

import pytest

from kvlib.block_table import BlockTable, num_blocks_for
from kvlib.blocks import BlockPool
from kvlib.plan import BlockCopy, OutOfBlocks


def table(num_tokens=0, num_blocks=6, block_size=4):
    pool = BlockPool(num_blocks)
    made = BlockTable(pool, block_size)
    made.append(num_tokens)
    return pool, made


@pytest.mark.parametrize("num_tokens", range(14))
@pytest.mark.parametrize("more", range(10))
def test_blocks_are_taken_at_the_boundary_and_not_before(num_tokens, more):
    pool, made = table(num_tokens)
    needed = made.blocks_needed(more)
    assert needed == num_blocks_for(num_tokens + more, 4) - num_blocks_for(num_tokens, 4)
    made.append(more)
    assert len(made.block_ids) == -(-(num_tokens + more) // 4)
    assert pool.num_held == len(made.block_ids)


def test_five_more_tokens_behind_14_touch_two_blocks_and_take_one():
    _, made = table(14, block_size=16)
    assert made.blocks_needed(5) == 1
    step = made.append(5)
    assert {slot // 16 for slot in made.slots(step.first, step.end)} == {0, 1}


def test_a_slot_is_its_block_times_the_size_plus_its_offset():
    pool, made = table(6)
    other = BlockTable(pool, 4)
    other.append(1)
    made.append(3)
    assert made.block_ids == (0, 1, 3)
    assert list(made.slots(5, 9)) == [5, 6, 7, 12]
    with pytest.raises(ValueError, match=r"blocks hold positions \[0, 12\), asked for \[11, 13\)"):
        list(made.slots(11, 13))


def test_a_large_slot_needs_more_than_32_bits():
    made = BlockTable(BlockPool(1), 4)
    made._blocks, made.num_tokens = [2**30], 4
    assert list(made.slots(3, 4)) == [2**32 + 3]


@pytest.mark.parametrize("filled, copied", [(1, 1), (3, 3), (4, 0)])
def test_only_a_partly_filled_shared_block_is_copied(filled, copied):
    pool, parent = table(4 + filled)
    child = parent.fork()
    assert pool.num_held == 2
    step = child.append(1)
    expected = (BlockCopy(parent.block_ids[-1], child.block_ids[-1], copied),) if copied else ()
    assert step.copies == expected
    assert parent.block_ids[0] == child.block_ids[0]
    assert parent.append(1).copies == ()


def test_the_parents_free_leaves_the_childs_blocks():
    pool, parent = table(6)
    child = parent.fork()
    parent.free()
    assert pool.num_held == 2 and child.append(1).copies == ()
    child.free()
    assert pool.num_free == 6
    child.free()
    assert pool.num_free == 6


def test_the_last_sharer_copies_too_where_others_would_find_their_tokens_overwritten():
    """`a` has three tokens in the block, `b` was cut to two: in place it would hit the third."""
    _, a = table(3)
    b = a.fork()
    b.truncate(2)
    assert b.must_copy({a.block_ids[-1]: (1, 3)})
    assert not b.must_copy({a.block_ids[-1]: (1, 2)})


def test_undo_restores_blocks_length_and_sharing():
    pool, parent = table(6)
    child = parent.fork()
    before = child.block_ids, child.num_tokens, pool.num_free
    step = child.extend(7)
    assert step.copies and pool.num_free == before[2] - 3
    child.undo(step)
    assert (child.block_ids, child.num_tokens, pool.num_free) == before
    assert pool.ref_count(parent.block_ids[-1]) == 2
    pool.check()


def test_too_few_blocks_change_nothing():
    pool, made = table(6)
    child = made.fork()
    pool.allocate(3)
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks, 1 free of 6"):
        child.append(3)
    assert child.block_ids == made.block_ids and child.num_tokens == 6
    pool.check()


@pytest.mark.parametrize("keep, blocks", [(9, 3), (8, 2), (5, 2), (4, 1), (1, 1), (0, 0)])
def test_truncate_gives_back_whole_blocks(keep, blocks):
    pool, made = table(9)
    made.truncate(keep)
    assert (made.num_tokens, len(made.block_ids), pool.num_held) == (keep, blocks, blocks)


@pytest.mark.parametrize("keep", [-1, 10, 1.5, True])
def test_truncate_refuses_what_is_not_there(keep):
    _, made = table(9)
    with pytest.raises((TypeError, ValueError)):
        made.truncate(keep)
    assert made.num_tokens == 9


def lines(pool):
    """All that a pool knows: counts, marks, and both lines of free blocks in their order."""
    return list(pool._refs), list(pool._marked), list(pool._empty), list(pool._kept)


def marked_and_cut(num_blocks=4):
    """Block 0 was full and marked; the table went back into the middle of it."""
    lost = []
    pool = BlockPool(num_blocks, on_evict=lost.append)
    made = BlockTable(pool, 4)
    made.append(4)
    pool.mark(0)
    made.truncate(2)
    return pool, made, lost


def test_content_is_not_written_into_after_going_back_but_copied():
    """Otherwise whoever finds the block again would find the new token in the old text."""
    pool, made, lost = marked_and_cut()
    assert made.blocks_needed(1) == 1 and made.blocks_needed(0) == 0
    assert made.append(1).copies == (BlockCopy(0, 1, 2),)
    assert made.block_ids == (1,)
    assert (lost, pool.has_content(0), pool.num_kept) == ([], True, 1)
    pool.share([0])
    pool.check()


@pytest.mark.parametrize("more", [0, 1, 2, 3, 9])
def test_undo_leaves_the_pool_as_it_was_marks_and_order_too(more):
    pool, made, lost = marked_and_cut()
    before = lines(pool), made.block_ids, made.num_tokens
    made.undo(made.extend(more))
    assert (lines(pool), made.block_ids, made.num_tokens) == before
    made.free()
    assert (lost, pool.num_kept) == ([], 1)


def test_content_without_a_block_for_its_copy_is_refused_or_given_up():
    pool, made, lost = marked_and_cut(num_blocks=1)
    before = lines(pool)
    with pytest.raises(OutOfBlocks, match="asked for 1 blocks, 0 free of 1"):
        made.append(1)
    assert lines(pool) == before
    pool.unmark(0)
    assert made.append(1).copies == () and lost == [0]


@pytest.mark.parametrize("close", ["settle", "undo"])
def test_only_the_open_extension_is_settled_or_undone(close):
    pool, made = table(6)
    twin = made.fork()
    undone = made.extend(1)
    made.undo(undone)
    settled = made.append(1)
    for pending in (False, True):
        step = made.extend(2) if pending else None
        theirs = twin.extend(0)
        before = lines(pool), made.block_ids, made.num_tokens
        for wrong in (undone, settled, theirs, settled._replace(), None):
            with pytest.raises(ValueError, match="only the open extension"):
                getattr(made, close)(wrong)
            assert (lines(pool), made.block_ids, made.num_tokens) == before
        twin.undo(theirs)
        if step:
            getattr(made, close)(step)
            assert made.num_tokens == (9 if close == "settle" else 7)
    pool.check()


def test_while_an_extension_is_open_nothing_else_is_done_to_the_table():
    pool, made = table(6)
    step = made.extend(3)
    before = lines(pool), made.block_ids, made.num_tokens
    for call in (
        lambda: made.extend(1),
        lambda: made.append(1),
        lambda: made.truncate(2),
        lambda: made.free(),
        lambda: made.drop_before(4),
        made.fork,
    ):
        with pytest.raises(ValueError, match="an extension is open"):
            call()
        assert (lines(pool), made.block_ids, made.num_tokens) == before
    made.undo(step)
    assert made.num_tokens == 6


@pytest.mark.parametrize("count", [-1, -5, 1.5, True])
def test_a_number_of_tokens_is_a_whole_number_of_at_least_none(count):
    pool, made = table(6)
    before = lines(pool), made.block_ids, made.num_tokens
    for call in (made.blocks_needed, made.extend, made.append, made.truncate, pool.can_allocate):
        with pytest.raises((TypeError, ValueError), match=r"must be a(t least 0| whole number)"):
            call(count)
    assert (lines(pool), made.block_ids, made.num_tokens) == before
    if count < 0:
        with pytest.raises(ValueError, match="num_tokens must be at least 0"):
            num_blocks_for(count, 4)


def test_blocks_before_the_window_go_back_and_the_null_block_stands_for_them():
    pool, made = table(13)
    made.drop_before(7)
    assert made.block_ids == (4 + 2, 1, 2, 3) and made.first_position == 4
    with pytest.raises(ValueError, match=r"hold positions \[4, 16\)"):
        list(made.slots(3, 5))
    for keep in (1, 3):
        with pytest.raises(ValueError, match=f"positions before 4 are gone, asked to keep {keep}"):
            made.truncate(keep)
    child = made.fork()
    made.free()
    assert pool.num_held == 3
    child.truncate(0)
    assert pool.num_free == 6 and child.first_position == 0
    pool.check()


def test_a_window_that_has_not_moved_drops_nothing():
    pool, made = table(3, block_size=1)
    for position in (0, -5):
        made.drop_before(position)
        assert made.block_ids == (0, 1, 2) and pool.num_held == 3


def test_the_tokens_that_a_window_has_dropped_can_be_all_that_is_kept():
    pool, made = table(13)
    made.drop_before(7)
    made.truncate(4)
    assert (made.num_tokens, made.block_ids, pool.num_held) == (4, (6,), 0)
    assert made.append(1).copies == () and pool.num_held == 1


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_block_size_is_a_positive_whole_number(size):
    with pytest.raises((TypeError, ValueError), match="block_size must be"):
        BlockTable(BlockPool(1), size)
