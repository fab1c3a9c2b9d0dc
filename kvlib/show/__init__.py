"""What a page shows: drawings with controls, graded exercises, plots in one style.

`widget` and `exercise` need nothing installed; the plots load matplotlib when first used.
"""

from __future__ import annotations

from typing import Any

from kvlib.show.widgets import DrawingWidget, ExerciseView

widget = DrawingWidget
exercise = ExerciseView

__all__ = ["bar_plot", "exercise", "line_plot", "widget"]


def __getattr__(name: str) -> Any:
    if name in ("bar_plot", "line_plot"):
        from kvlib.show import plots

        return getattr(plots, name)
    raise AttributeError(f"kvlib.show has no {name!r}; it has {', '.join(__all__)}")
