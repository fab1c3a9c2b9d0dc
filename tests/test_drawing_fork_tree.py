"""The fork tree shows the library's own ledger: n - 1 copies, and none at a boundary."""

import re

import pytest

from kvlib.show.drawings.fork_tree import PROMPT, STEPS, after, fork_tree


@pytest.mark.parametrize("size", [1, 2, 4])
def test_of_three_sharers_two_copy_what_the_block_holds(size):
    state = after(3, size)
    assert state.copied == 2 * (PROMPT % size)
    assert len(state.copies) == (2 if PROMPT % size else 0)
    state.ledger.check()


def test_a_fork_at_a_boundary_copies_nothing():
    assert after(6, 4).ledger.length("d") % 4 == 0
    assert after(8, 4).copied == after(3, 4).copied == 4


def test_clones_would_copy_the_whole_past_at_every_fork():
    assert after(len(STEPS), 4).cloned == 6 + 6 + 8
    assert "Tokens copied so far: 4; by cloning at each fork: 20." in fork_tree(8, 4)


def test_a_leaver_takes_nothing_from_the_others():
    before, left = (after(step, 4).ledger for step in (4, 5))
    assert [left.table(name) for name in "ab"] == [before.table(name) for name in "ab"]
    assert left.pool.num_held == before.pool.num_held - 1


@pytest.mark.parametrize("size", [1, 2, 4])
def test_labels_of_neighbouring_blocks_do_not_touch(size):
    label = re.compile(
        r'<text x="([\d.]+)" y="([\d.]+)" font-size="(\d+)"[^>]*>([^<]*\u00d7\d)</text>'
    )
    found = [
        (float(y), float(x), int(px), words)
        for x, y, px, words in label.findall(fork_tree(8, size))
    ]
    assert len(found) == after(8, size).ledger.pool.num_held
    for (y, x, px, words), (below, beyond, *_) in zip(
        sorted(found), sorted(found)[1:], strict=False
    ):
        assert below > y or x + 0.65 * px * len(words) <= beyond, words
