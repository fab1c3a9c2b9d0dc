"""The model of the caching allocator follows PyTorch's rules, one test a rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.segments import MIB, SegmentPool, _segment_bytes
from test_checks import found, table


@pytest.mark.parametrize(
    "size, segment",
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 1, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_what_the_driver_is_asked_for(size, segment):
    assert _segment_bytes(size) == segment


def test_a_request_is_rounded_up_to_512_bytes():
    pool = SegmentPool()
    assert [pool.allocate(size).piece.size for size in (1, 512, 513)] == [512, 512, 1024]
    assert (pool.used_bytes, pool.reserved_bytes) == (2048, 2 * MIB)


def test_small_and_large_requests_share_no_segment():
    pool = SegmentPool()
    large, small = pool.allocate(2 * MIB), pool.allocate(1000)
    assert large.segment is not small.segment
    pool.free(large)
    assert pool.allocate(1000).segment is small.segment


def test_exactly_one_mib_is_still_small():
    pool = SegmentPool()
    pool.allocate(5)
    assert pool.allocate(MIB).piece.size == MIB  # what is left stays for others
    assert pool.reserved_bytes == 2 * MIB and len(pool.segments) == 1


def test_the_smallest_hole_of_all_segments_is_cut():
    pool = SegmentPool()
    blocks = [pool.allocate(size * MIB) for size in (9, 9, 9, 6)]
    pool.free(blocks[0])
    assert pool.allocate(4 * MIB).segment is blocks[2].segment  # 5 MiB there, 9 in the first
    assert pool.reserved_bytes == 40 * MIB


def test_a_hole_of_just_the_size_is_taken():
    pool = SegmentPool()
    pool.free(pool.allocate(10 * MIB))
    pool.allocate(10 * MIB)
    assert pool.reserved_bytes == 10 * MIB and len(pool.segments) == 1


def test_a_large_block_is_not_split_where_one_mib_or_less_would_remain():
    pool = SegmentPool()
    first = pool.allocate(9 * MIB)
    pool.allocate(9 * MIB)
    pool.free(first)
    block = pool.allocate(8 * MIB)
    assert block.piece.size == 9 * MIB
    pool.free(block)
    assert pool.allocate(8 * MIB - 512).piece.size == 8 * MIB - 512
    pool = SegmentPool()
    pool.allocate(18 * MIB)
    assert pool.allocate(5 * MIB).piece.size == 5 * MIB


def test_freed_neighbours_join_and_segments_stay():
    pool = SegmentPool()
    blocks = [pool.allocate(6 * MIB) for _ in range(3)]
    for block in blocks:
        pool.free(block)
    assert pool.layout() == [[("free", 20 * MIB)]]
    assert (pool.used_bytes, pool.reserved_bytes) == (0, 20 * MIB)
    with pytest.raises(ValueError, match="freed before"):
        pool.free(blocks[0])


def test_a_block_of_another_pool_is_refused():
    pool, other = SegmentPool(), SegmentPool()
    pool.allocate(5)
    block = other.allocate(5)
    with pytest.raises(ValueError, match="not from a segment of this pool"):
        pool.free(block)
    assert other.used_bytes == 512


def test_an_expandable_segment_grows_by_pages_and_its_holes_join():
    """Twice 9 MiB freed make room for 18, which two segments of 20 with 9 in use do not have."""
    pool, fixed = SegmentPool(expandable=True), SegmentPool()
    for each in (pool, fixed):
        blocks = [each.allocate(9 * MIB) for _ in range(4)]
        each.free(blocks[1])
        each.free(blocks[2])
        each.allocate(18 * MIB)
    assert pool.reserved_bytes == 40 * MIB and len(pool.segments) == 1
    assert fixed.reserved_bytes == 58 * MIB
    assert pool.layout() == [[("used", 9 * MIB), ("used", 18 * MIB), ("used", 9 * MIB)]]


def test_what_an_expandable_segment_has_grown_to_it_keeps():
    pool = SegmentPool(expandable=True)
    first, _ = pool.allocate(30 * MIB), pool.allocate(30 * MIB)
    pool.free(first)
    pool.allocate(2 * MIB)
    assert pool.reserved_bytes == 60 * MIB


def test_an_expandable_segment_for_small_requests_grows_by_2_mib():
    pool = SegmentPool(expandable=True)
    assert pool.reserved_bytes == 0
    blocks = [pool.allocate(size) for size in (2 * MIB, MIB, MIB, 5)]
    assert [pool.segments.index(block.segment) for block in blocks] == [1, 0, 0, 0]
    assert [segment.size for segment in pool.segments] == [2**48, 2**48]  # addresses, not bytes
    assert pool.reserved_bytes == (20 + 4) * MIB
    assert pool.layout() == [[("used", MIB), ("used", MIB), ("used", 512)], [("used", 2 * MIB)]]
    pool.check()


def test_an_expandable_segment_splits_its_holes_however_little_remains():
    pool = SegmentPool(expandable=True)
    first, _ = pool.allocate(9 * MIB), pool.allocate(9 * MIB)
    pool.free(first)
    assert pool.allocate(8 * MIB).piece.size == 8 * MIB


def move(pool, small):
    pool._segments[not small].append(pool._segments[small].pop())


@table(
    books=(lambda p: p.segments[0]._holes.pop(), "units lost"),
    large_among_small=(lambda p: move(p, small=False), "is in a wrong segment"),
    small_among_large=(lambda p: move(p, small=True), "is in a wrong segment"),
    end_of_small=(lambda p: p._ends.update({True: 511}), "lies behind the end"),
    end_of_large=(lambda p: p._ends.update({False: 0}), "lies behind the end"),
)
@pytest.mark.parametrize("expandable", [False, True])
def test_a_check_finds_what_is_wrong_with_a_segment(expandable, spoil, named):
    """One small request and one that fills its segment of 10 MiB, where they are not expandable."""
    pool = SegmentPool(expandable)
    pool.allocate(5)
    pool.allocate(10 * MIB)
    found(pool, spoil, named)


def test_a_full_segment_is_used_as_far_as_it_is_reserved():
    pool = SegmentPool()
    pool.allocate(10 * MIB)
    pool.check()
    assert pool.used_bytes == pool.reserved_bytes == 10 * MIB


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12 * MIB)), max_size=60), st.booleans())
def test_no_byte_is_lost(events, expandable):
    pool, live = SegmentPool(expandable), []
    for leaves, size in events:
        if leaves and live:
            pool.free(live.pop(size % len(live)))
        else:
            live.append(pool.allocate(size))
        pool.check()
        assert pool.used_bytes == sum(block.piece.size for block in live)
        assert pool.used_bytes <= pool.reserved_bytes
        used = sum(n for row in pool.layout() for kind, n in row if kind == "used")
        assert used == pool.used_bytes
        if not expandable:
            held = sum(n for row in pool.layout() for _, n in row)
            assert held == pool.reserved_bytes


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_sizes_are_whole_numbers_of_at_least_one(size):
    with pytest.raises((TypeError, ValueError), match="size must be"):
        SegmentPool().allocate(size)
