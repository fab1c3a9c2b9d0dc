"""Plots in the book's one style: a PNG that always carries its description.

A plot needs an `alt` text: what is seen, and what to conclude. It is also the output's plain text,
so that a reader without images gets it and a test that cannot compare images compares it: write
computed numbers into it.
"""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO
from math import ceil, floor, log10
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from kvlib.show.drawings.palette import GROUND, ROLES

_STYLE = {
    # It comes with matplotlib, so that every machine has it and draws the same letters.
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GROUND["rule"].light,
    "hatch.color": GROUND["paper"].light,
    "hatch.linewidth": 1.2,
    "legend.frameon": False,
}
_MARKERS = "osD^vPX"
_DASHES = ("-", "--", "-.", ":")


class Plot:
    """A finished plot; the last line of a cell shows it.

    Attributes:
        series: the numbers that were drawn, by name, so that a cell can assert them.
        alt: the description.
    """

    def __init__(self, figure: Figure, series: Mapping[str, Any], alt: str) -> None:
        if not alt.strip():
            raise ValueError("a plot needs an alt text: what is seen, and what to conclude")
        self.series, self.alt = dict(series), alt
        png = BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Glyph .* missing", UserWarning)
            try:
                figure.savefig(png, format="png", dpi=144, metadata={"Software": None})
            except UserWarning as missing:  # a reader would see an empty box
                raise ValueError(f"the plot has a letter that its font lacks: {missing}") from None
        self._png = b64encode(png.getvalue()).decode()

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data = {"image/png": self._png, "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt, "width": 640}}

    def __repr__(self) -> str:
        return f"Plot: {self.alt}"


def _axes(x: str, y: str, log: str, height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y, **{f"{name}scale": "log" for name in log})
    for name in log:
        getattr(axes, f"{name}axis").set_major_formatter("{x:,.12g}")
    return figure, axes


def _label_short(axes: Axes, log: str) -> None:
    """Labels 1, 2 and 5 on a logarithmic axis that has drawn fewer than two powers of ten."""
    for name in log:
        axis = getattr(axes, f"{name}axis")
        low, high = getattr(axes, f"get_{name}lim")()
        if floor(log10(high)) - ceil(log10(low)) < 1:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())


def _name_series(figure: Figure, axes: Axes) -> None:
    """Puts the legend where no line runs and no bar lies, or else above the plot.

    "best" is the emptiest place inside, which may hold one all the same.
    """
    legend = axes.legend()
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    lines = (line.get_path().transformed(line.get_transform()) for line in axes.lines)
    crossed = any(line.intersects_bbox(box, filled=False) for line in lines)
    if crossed or any(bar.get_window_extent().overlaps(box) for bar in axes.patches):
        widest = max(len(text.get_text()) for text in legend.get_texts())
        legend.remove()
        figure.legend(loc="outside upper center", ncols=3 if widest < 20 else 2)


def _end_at_tick(axes: Axes) -> None:
    """Lengthens the axis of bars to its next tick where that is less than 2 % off."""
    low, high = axes.get_xlim()
    beyond = [tick for tick in axes.get_xticks() if 0 < tick - high < 0.02 * (high - low)]
    axes.set_xlim(right=min(beyond, default=high))


def _role(name: str, index: int, roles: Mapping[str, str] | None) -> str:
    """Returns the role of a series: the one asked for, its own name, or the next in the palette."""
    own = name if name in ROLES else list(ROLES)[(index + 1) % len(ROLES)]
    return (roles or {}).get(name, own)


def line_plot(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    alt: str,
    log: str = "",
    roles: Mapping[str, str] | None = None,
) -> Plot:
    """Returns lines with markers, one a series.

    Args:
        series: name to (x values, y values).
        x: what the x axis shows, with its unit.
        y: what the y axis shows, with its unit.
        alt: what is seen, and what to conclude; never empty.
        log: the logarithmic axes: "", "x", "y" or "xy".
        roles: name to palette role, where a series means one (`used`, `cached`, ...).
    """
    with rc_context(_STYLE):
        figure, axes = _axes(x, y, log)
        for index, (name, (xs, ys)) in enumerate(series.items()):
            colour = ROLES[_role(name, index, roles)].light
            marker, dash = _MARKERS[index % len(_MARKERS)], _DASHES[index % len(_DASHES)]
            axes.plot(xs, ys, label=name, color=colour, marker=marker, linestyle=dash)
        _label_short(axes, log)
        _name_series(figure, axes)
        return Plot(figure, series, alt)


def bar_plot(
    series: Mapping[str, Sequence[float]],
    labels: Sequence[str],
    *,
    y: str,
    alt: str,
    stacked: bool = False,
    log: bool = False,
    limit: tuple[str, float] | None = None,
    roles: Mapping[str, str] | None = None,
) -> Plot:
    """Returns horizontal bars, grouped or stacked: one group a label, one bar a series.

    Args:
        series: name to one value for each label.
        labels: what each group stands for, from top to bottom.
        y: what the length of a bar shows, with its unit; the bars lie, so it runs to the right.
        alt: what is seen, and what to conclude; never empty.
        stacked: put the series of a label end to end.
        log: make the length logarithmic; bars then compare by their ends, not their areas.
        limit: a line across all bars: its name and its value.
        roles: name to palette role, where a series means one (`used`, `wasted`, ...).

    Raises:
        ValueError: a series has not one value for each label.
    """
    thick = 0.8 / (1 if stacked else len(series))
    starts = [0.0] * len(labels)
    with rc_context(_STYLE):
        figure, axes = _axes(y, "", "x" if log else "", 1.1 + 0.36 * len(labels))
        for index, (name, values) in enumerate(series.items()):
            role, shift = ROLES[_role(name, index, roles)], 0 if stacked else index * thick
            rows = [row - 0.4 + thick / 2 + shift for row in range(len(labels))]
            style = {"label": name, "color": role.light, "hatch": role.hatch * 2}
            axes.barh(rows, values, thick, starts, **style)
            ends = [start + value for start, value in zip(starts, values, strict=True)]
            starts = ends if stacked else starts
        if limit:
            axes.axvline(limit[1], color=GROUND["ink"].light, linestyle="--", label=limit[0])
        _label_short(axes, "x" if log else "")
        _end_at_tick(axes)
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        if stacked:
            # Bars end to end leave no room for it among them.
            figure.legend(loc="outside upper center", ncols=3)
        elif len(series) > 1 or limit:
            _name_series(figure, axes)
        return Plot(figure, series, alt)


def strip_plot(
    strips: Mapping[str, Sequence[tuple[str, float]]],
    *,
    x: str,
    words: Mapping[str, str],
    alt: str,
) -> Plot:
    """Returns one strip a row, each a run of pieces end to end: memory as it lies, by address.

    Args:
        strips: name to its pieces from left to right, each a key of `words` and a length.
        x: what a length shows, with its unit.
        words: for each kind of piece what the legend says; `used` and `wasted` have their colours,
            any other is free.
        alt: what is seen, and what to conclude; never empty.
    """
    with rc_context(_STYLE):
        figure, axes = _axes(x, "", "", 1.3 + 0.36 * len(strips))
        for row, pieces in enumerate(strips.values()):
            start = 0.0
            for kind, length in pieces:
                role = (ROLES | GROUND).get(kind, GROUND["paper"])
                style = {"facecolor": role.light, "hatch": role.hatch * 2}
                style |= {"edgecolor": GROUND["faint"].light, "label": words[kind]}
                axes.barh(row, length, 0.7, start, **style)
                start += length
        axes.set_yticks(range(len(strips)), list(strips))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        handles, labels = axes.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        figure.legend(once.values(), once.keys(), loc="outside upper center", ncols=3)
        return Plot(figure, strips, alt)
