"""The split of a budget: parts that add up, losses that keep their names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.waste import Allocation, MemorySplit, split

requests = st.lists(
    st.lists(st.integers(0, 50), min_size=3, max_size=3).map(sorted).map(lambda x: x[::-1])
)


@given(requests, st.integers(0, 100), st.data())
def test_parts_add_up_to_the_total(triples, slack, data):
    allocations = [Allocation(reserved, used, final) for reserved, final, used in triples]
    total = sum(a.reserved for a in allocations) + slack
    usable = data.draw(st.integers(0, slack))
    parts = split(total, allocations, usable_free=usable)
    assert parts.used == sum(a.used for a in allocations)
    assert parts.external_fragmentation + parts.free == slack
    assert parts.internal_fragmentation == sum(a.reserved - a.final for a in allocations)
    assert parts.reservation == sum(a.final - a.used for a in allocations)


def test_orca_max_leaves_the_published_8_85_percent_outside():
    """15,728 slots, reservations of 2,048: seven fit, and the rest serves nobody (SOSP 2023)."""
    seven = [Allocation(reserved=2048, used=0, final=0)] * 7
    parts = split(15_728, seven, usable_free=0)
    assert round(100 * parts.external_fragmentation / parts.total, 2) == 8.85


@pytest.mark.parametrize(
    "total, allocations, usable, message",
    [
        (10, [Allocation(8, 5, 4)], None, "used <= final"),
        (10, [Allocation(8, -1, 4)], None, "0 <= used"),
        (10, [Allocation(8, 1, 4), Allocation(3, 0, 0)], None, "11 of a total of 10"),
        (10, [Allocation(8, 1, 9)], None, "final <= reserved"),
        (10, [Allocation(8, 1, 4)], 3, "usable_free 3 is not within the 2"),
        (10, [Allocation(8, 1, 4)], -1, "usable_free -1 is not within the 2"),
    ],
)
def test_impossible_splits_are_refused_with_the_numbers(total, allocations, usable, message):
    with pytest.raises(ValueError, match=message):
        split(total, allocations, usable_free=usable)


@pytest.mark.parametrize(
    "parts",
    [
        *((1, 2, 3, 3, 0), (1, 2, 3, 3, 2)),
        *((-1, 0, 0, 0, 11), (0, -1, 0, 0, 11), (0, 0, -1, 0, 11), (0, 0, 0, -1, 11)),
        (11, 0, 0, 0, -1),
    ],
)
def test_a_split_that_does_not_add_up_cannot_be_made(parts):
    with pytest.raises(ValueError, match="add up to 10"):
        MemorySplit(10, *parts)


def test_a_split_by_hand():
    """Of 30 two requests reserve 18: 9 used, 4 to come, 5 never used; outside are 12, 7 usable."""
    requests = [Allocation(8, 3, 5), Allocation(10, 6, 8)]
    parts = split(30, iter(requests), usable_free=7)
    assert parts == MemorySplit(30, 9, 4, 5, 5, 7)
    assert split(30, requests) == MemorySplit(30, 9, 4, 5, 0, 12)
    with pytest.raises(AttributeError):
        parts.used = 10


def test_utilization_is_the_used_share():
    assert split(20, [Allocation(8, 5, 5)]).utilization == 0.25
    assert split(8, [Allocation(8, 8, 8)]).utilization == 1.0
    assert split(0, []).utilization == split(0, [Allocation(0, 0, 0)]).utilization == 0.0
