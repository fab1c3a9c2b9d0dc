"""The pool drawing is a real pool while it has no fault, and names the broken rule when it has."""

import pytest

from kvlib.blocks import BlockPool
from kvlib.show.drawings.block_pool import BLOCKS, EVENTS, FAULTS, after, block_pool


def test_without_a_fault_it_is_the_librarys_pool_event_by_event():
    pool, tables = BlockPool(BLOCKS), {}
    for event, (what, name, _) in enumerate(EVENTS):
        if what == "take":
            tables[name] = pool.allocate(2)
        elif what == "fork":
            tables[name] = list(tables["a"])
            pool.share(tables[name])
        elif what == "leave":
            pool.free(tables.pop(name))
        drawn = after(event, "none")
        assert drawn.refs == [pool.ref_count(block) for block in range(BLOCKS)]
        assert (drawn.tables, len(drawn.free)) == (tables, pool.num_free)
        assert drawn.broken() == [[], [], [], []]
        assert "broken" not in block_pool(event, "none")


@pytest.mark.parametrize(
    ("fault", "first", "rules"),
    [
        ("double free", 5, [True, True, False, True]),
        ("share", 3, [True, True, False, True]),
        ("leak", 4, [True, False, True, False]),
    ],
)
def test_each_fault_breaks_its_rules_and_not_before_it_happens(fault, first, rules):
    broken = [list(map(bool, after(event, fault).broken())) for event in range(len(EVENTS))]
    assert [any(each) for each in broken].index(True) == first
    assert [any(column) for column in zip(*broken, strict=True)] == rules


def test_every_rule_is_broken_by_some_fault():
    for rule in range(4):
        assert any(
            after(event, fault).broken()[rule] for fault in FAULTS for event in range(len(EVENTS))
        )


def test_a_double_free_gives_one_block_to_two():
    tables = after(6, "double free").tables
    assert set(tables["c"]) == set(tables["d"])
    assert ">broken by 0 1<" in block_pool(5, "double free")
    assert "Refused: a has no blocks to free." in block_pool(5, "none")
