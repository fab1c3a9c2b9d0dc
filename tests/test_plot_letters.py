"""Plots look the same on every machine, and have every letter that they need."""

import matplotlib as mpl
import pytest

from kvlib import show
from kvlib.show import plots

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


@pytest.mark.parametrize("log", ["", "x", "xy"])
def test_no_line_runs_through_a_legend(monkeypatch, log):
    drawn = []
    monkeypatch.setattr(plots, "Plot", lambda figure, *rest: drawn.append(figure))
    rising, falling = list(range(1, 40)), list(range(40, 1, -1))
    crowd = {"up": (rising, rising), "down": (rising, falling), "level": (rising, [20] * 39)}
    crowd |= {f"at {x}": ([x, x], [1, 40]) for x in range(3, 39, 5)}
    for series in ({"up": (rising, rising)}, crowd):
        plots.line_plot(series, x="n", y="m", alt="Lines.", log=log)
        figure = drawn.pop()
        figure.draw_without_rendering()
        inside, outside = figure.axes[0].get_legend(), figure.legends
        assert (inside is None) == (len(series) > 1) == bool(outside)
        legend = inside or outside[0]
        assert len(legend.get_texts()) == len(series)
        for line in figure.axes[0].lines:
            path = line.get_path().transformed(line.get_transform())
            assert not path.intersects_bbox(legend.get_window_extent(), filled=False)


def test_no_bar_lies_under_a_legend(monkeypatch):
    """One did, of three series in three short groups."""
    drawn = []
    monkeypatch.setattr(plots, "Plot", lambda figure, *rest: drawn.append(figure))
    stairs, full = [1, 10, 100], [100, 100, 100]
    for series in ({"a": stairs, "b": stairs}, {"a": full, "b": full, "c": full}):
        plots.bar_plot(series, list("xyz"), y="n", alt="Bars.")
        figure = drawn.pop()
        figure.draw_without_rendering()
        inside, outside = figure.axes[0].get_legend(), figure.legends
        assert (inside is None) == (series["a"] is full) == bool(outside)
        box = (inside or outside[0]).get_window_extent()
        assert not any(bar.get_window_extent().overlaps(box) for bar in figure.axes[0].patches)


@pytest.mark.parametrize(("longest", "end"), [(99.9, 100), (90.0, 90)])
def test_an_axis_that_ends_just_before_a_tick_goes_on_to_it(monkeypatch, longest, end):
    """Parts of 99.9 % had an axis whose last tick was 80: a part of no length ends the axis."""
    drawn = []
    monkeypatch.setattr(plots, "Plot", lambda figure, *rest: drawn.append(figure))
    parts = {"a": [longest, 50], "b": [0, 20]}
    plots.bar_plot(parts, ["x", "y"], y="%", alt="Bars.", stacked=True)
    assert drawn.pop().axes[0].get_xlim() == (0, end)
