"""Plots look the same on every machine, and have every letter that they need."""

import matplotlib as mpl
import pytest

from kvlib import show

SERIES = {"used": [1, 2]}


def drawn(labels=("a", "b"), y="GB", alt="Two bars."):
    return show.bar_plot(SERIES, labels, y=y, alt=alt)._png


def test_a_readers_own_settings_do_not_reach_a_plot(recwarn):
    """A machine may name a font that it does not have; the style names one that comes along."""
    plain = drawn()
    with mpl.rc_context({"font.family": "No Such Font", "font.sans-serif": ["Nor This One"]}):
        assert drawn() == plain
    assert not recwarn.list


@pytest.mark.parametrize("where", ["labels", "y"])
def test_a_letter_that_the_font_lacks_is_an_error_and_no_empty_box(where):
    given = {"labels": ("缓存", "b")} if where == "labels" else {"y": "缓存 GB"}
    with pytest.raises(ValueError, match="a letter that its font lacks"):
        drawn(**given)


def test_the_letters_that_the_book_uses_are_there():
    drawn(labels=("2 × 3 ≤ 7", "µs → 1e−5"), y="½ GiB · σ²", alt="缓存: only read, never drawn.")
