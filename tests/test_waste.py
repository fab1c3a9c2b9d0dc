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
        (10, [Allocation(8, 1, 4)], 3, "usable_free 3 is not within the 2"),
    ],
)
def test_impossible_splits_are_refused_with_the_numbers(total, allocations, usable, message):
    with pytest.raises(ValueError, match=message):
        split(total, allocations, usable_free=usable)


def test_a_split_that_does_not_add_up_cannot_be_made():
    with pytest.raises(ValueError, match="add up to 10"):
        MemorySplit(10, 1, 2, 3, 3, 0)


def test_utilization_is_the_used_share():
    assert split(20, [Allocation(8, 5, 5)]).utilization == 0.25
