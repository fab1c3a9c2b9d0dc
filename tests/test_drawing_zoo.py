"""The zoo's addresses: each bug is wrong where its arithmetic says, and only there."""

import pytest

from kvlib.show.drawings.zoo import BUGS, LONGEST, places, zoo

# For each bug the wrong places at 5, 7, 8 and 12 tokens.
WRONG = {
    "stale": [range(4)] * 4,
    "double free": [[4]] * 4,
    "minus one": [[], [], [], [11]],
    "batch row": [range(5), range(7), range(8), range(12)],
    "boundary": [[3], [3], [3], [3, 7]],
    "no copy": [[], [6], [6, 7], [6, 7]],
    "partial": [[], [6], [6, 7], [6, 7]],
    "heads": [[1, 2, 3, 5, 6, 7]] * 4,
    "tail": [[5, 6, 7], [7], [], []],
    "full hit": [[4], [6], [7], [11]],
    "window": [[0], [2], [3], [7]],
    "values": [[5, 6], [], [], []],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_wrong_where_it_should_be(bug):
    for num_tokens, expected in zip((5, 7, 8, 12), WRONG[bug], strict=True):
        rows = places(bug, num_tokens)
        wrong = [i for i, place in enumerate(rows) if place.meant != place.found]
        assert wrong == list(expected), num_tokens


def test_no_length_shows_every_bug():
    for num_tokens in range(5, LONGEST + 1):
        assert any(all(p.meant == p.found for p in places(bug, num_tokens)) for bug in BUGS)


def test_the_picture_names_the_first_wrong_place():
    assert "2 positions are wrong; the first is position 6." in zoo("no copy", 8)
    assert "6 query heads are wrong; the first is query head 1." in zoo("heads", 8)
    assert "Nothing is wrong at this length." in zoo("minus one", 11)
    assert ">first</text>" in zoo("minus one", 12) and ">first<" not in zoo("minus one", 11)
