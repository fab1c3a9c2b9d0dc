"""Finds the file of a module without importing it, so that a build with nothing new stays short.

`sphinx.ext.viewcode` asks of every module of the API pages whether its source is newer than the
page that shows it, and imports the module to learn its file. Half of ours then load torch; without
torch they fail to load, and their pages are written again each time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext import viewcode

ROOT = Path(__file__).resolve().parents[2]


def module_file(app: Sphinx | None, name: str) -> str | None:
    """Returns the path of a module of this repository, None for any other.

    >>> Path(module_file(None, "kvlib.sizes")).name, Path(module_file(None, "kvlib")).name
    ('sizes.py', '__init__.py')
    >>> module_file(None, "json")
    """
    place = ROOT.joinpath(*name.split("."))
    found = (place.with_suffix(".py"), place / "__init__.py")
    return next((str(path) for path in found if path.is_file()), None)


def _with_source(app: Sphinx) -> list[tuple[str, dict[str, Any], str]]:
    """Forgets the modules without a source before viewcode lists them; adds no page."""
    known = getattr(app.env, "_viewcode_modules", {})
    for name in [name for name, entry in known.items() if not entry]:
        del known[name]
    return []


def setup(app: Sphinx) -> dict[str, bool]:
    """Gives viewcode this way to find a file; it has no setting for it (Sphinx 7.4)."""
    app.setup_extension("sphinx.ext.viewcode")
    viewcode.get_module_filename = module_file
    app.connect("html-collect-pages", _with_source, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
