"""The bar beside long work: it counts the work that is done, and is silent when nobody watches."""

import sys
import types

import pytest

from kvlib.show import long_work as module
from kvlib.show.long_work import progress, progress_to, watched


class Shell:
    kernel = object()


@pytest.fixture
def bars(monkeypatch):
    """A kernel with somebody before it, and the bars it is shown: [what, total, done, closed]."""
    shown = []

    class Bar:
        def __init__(self, *, total, desc, leave, **rest):
            assert leave is False  # what stays would be stored in the notebook
            self.n, self.row = 0, [desc, total, 0, False]
            shown.append(self.row)

        def update(self, more):
            assert more >= 0
            self.n += more
            self.row[2] = self.n

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.row[3] = True

    ipython = types.SimpleNamespace(get_ipython=Shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    monkeypatch.delenv("KVLIB_PROGRESS", raising=False)
    return shown


def test_a_piece_counts_when_the_work_on_it_is_done(bars):
    seen = []
    for piece in progress(["a", "b"], "letters"):
        seen.append((piece, bars[0][2]))
    assert seen == [("a", 0), ("b", 1)]
    assert bars == [["letters", 2, 2, True]]


def test_a_call_says_how_many_are_done_not_how_many_more(bars):
    with progress_to(300, "requests") as done:
        done(100)
        done(250)
        assert bars == [["requests", 300, 250, False]]
    assert bars[0][3]


def test_a_bar_is_closed_when_the_work_fails(bars):
    with pytest.raises(ZeroDivisionError):
        for _ in progress([1, 2], "divisions"):
            1 / 0  # noqa: B018
    with pytest.raises(ZeroDivisionError), progress_to(2, "divisions"):
        1 / 0  # noqa: B018
    assert all(closed for *_, closed in bars)


def test_nobody_watches_a_test_or_a_program(bars, monkeypatch):
    assert watched()
    monkeypatch.setenv("KVLIB_PROGRESS", "off")
    assert not watched() and list(progress([1], "one")) == [1] and bars == []
    monkeypatch.delenv("KVLIB_PROGRESS")
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert not watched()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not watched()


def test_work_without_a_length_is_refused(bars):
    with pytest.raises(TypeError, match="len"):
        next(progress(iter([1]), "ones"))
    assert bars == [] and module.PATIENCE_S > 0
