"""Reads two kinds of docstring on the API page the way they were meant.

Napoleon takes `Slots in use: rows times length` of a property for a type and a description, and
autodoc calls every field of a named tuple an "Alias for field number 0".
"""

from __future__ import annotations

import inspect
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring


def _property(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "property":
        text = inspect.getdoc(obj) or ""
        lines[:] = GoogleDocstring(text, app.config, app, "method", name, obj, options).lines()


def _skip_field(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    is_field = str(getattr(obj, "__doc__", "")).startswith("Alias for field number")
    return True if is_field else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Runs after napoleon, whose reading it replaces."""
    app.connect("autodoc-process-docstring", _property, priority=900)
    app.connect("autodoc-skip-member", _skip_field)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
