"""Mends what the theme's pages leave out for readers who listen to them.

The theme writes these in Python and templates of its own, so the built pages are the place.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

MENDS = (
    # A button that unfolds a part of the contents had no name.
    (r'<summary>(?=<span class="toctree-toggle")', '<summary aria-label="Pages below">'),
    # What folds a long output away says so itself; a label of other words hid that.
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    # The visible words, "Search Ctrl+K", name the button; a label of other words hid them.
    (r'(<button class="btn search-button-field[^>]*?) aria-label="Search"', r"\1"),
    # The titles of all three icons of the colour switch counted as its words.
    (r'(<i class="theme-switch [^>]*?) title="[^"]*"', r"\1"),
    # Entries of the bibliography are no list items, so their box is no list.
    (r'<div role="list" class="citation-list">', '<div class="citation-list">'),
)


def mend(html: str) -> str:
    """Returns a page with every flaw mended; a mended page stays as it is."""
    for flaw, right in MENDS:
        html = re.sub(flaw, right, html)
    return html


def _finished(app: Sphinx, failed: Exception | None) -> None:
    if failed or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        before = path.read_text(encoding="utf-8")
        if (after := mend(before)) != before:
            path.write_text(after, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Runs once the pages are written."""
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
