"""What a page shows: drawings with controls, graded exercises, code to try, plots in one style.

`widget`, `exercise`, `try_it` and `progress` need nothing installed; the plots load matplotlib when
first used.
"""

from __future__ import annotations

from typing import Any

from kvlib.show.advice import install
from kvlib.show.long_work import progress, progress_to
from kvlib.show.real_cache import widget
from kvlib.show.widgets import ExerciseView, TryIt

install()
exercise = ExerciseView
try_it = TryIt

__all__ = [
    "bar_plot",
    "exercise",
    "line_plot",
    "progress",
    "progress_to",
    "strip_plot",
    "try_it",
    "widget",
]


def __getattr__(name: str) -> Any:
    if name in ("bar_plot", "line_plot", "strip_plot"):
        from kvlib.show import plots

        return getattr(plots, name)
    raise AttributeError(f"kvlib.show has no {name!r}; it has {', '.join(__all__)}")
