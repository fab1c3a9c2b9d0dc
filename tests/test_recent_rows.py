"""Each sequence has a row of its own, and what it held comes with it."""

import pytest
import torch

from kvlib.plan import OutOfBlocks
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.recent_rows import RecentRows
from kvlib.tensors.store import KVStore


@pytest.fixture
def rows():
    made = RecentRows(KVStore(1, 2, 3, 1, 1))
    for side in made.sides:
        side.copy_(torch.arange(6.0).reshape(side.shape))
    return made


def test_a_row_is_one_sequences_until_it_gives_it_back(rows):
    rows.take("a")
    assert (rows.row("a"), rows.num_free) == (0, 1)
    rows.take("b")
    assert rows.row("b") == 1 and rows.table.tolist() == [[0], [1]]
    with pytest.raises(OutOfBlocks, match="'c' asked for a row of full precision, 0 free of 2"):
        rows.require_free("c")
    rows.check("ab")
    rows.give_back("a")
    rows.require_free("c")
    rows.take("c")
    assert rows.row("c") == 0
    with pytest.raises(KeyError):
        rows.row("a")
    with pytest.raises(KeyError):
        rows.give_back("a")
    rows.check("bc")


def test_what_a_row_held_comes_back_if_the_copy_does_not_come_to_its_end(rows):
    rows.take("a")
    rows.take("b")
    before = [side.clone() for side in rows.sides]
    copies = rows.copied(["b", "nobody", "a"])
    assert [tuple(each.shape) for each in copies] == [(1, 2, 1, 3, 1)] * 2
    with pytest.raises(KeyError), Overwrites() as over:
        rows.put(over, ["a", "b"], copies)
        assert rows.sides[1].flatten().tolist() == [3, 4, 5, 0, 1, 2]
        raise KeyError
    assert all(map(torch.equal, rows.sides, before))


@pytest.mark.parametrize(
    "breaks, says",
    [
        (lambda rows: rows._free.append(0), "a row is lost, or held twice"),
        (lambda rows: rows._free.pop(), "a row is lost, or held twice"),
        (lambda rows: rows.take("b"), "a row without a sequence"),
    ],
)
def test_rows_that_are_lost_or_held_twice_are_found(rows, breaks, says):
    rows.take("a")
    rows.check("a")
    breaks(rows)
    with pytest.raises(AssertionError, match=says):
        rows.check("a")
