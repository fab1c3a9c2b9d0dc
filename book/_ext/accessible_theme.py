"""Mends what the theme's pages leave out for readers who listen to them.

The theme writes these in Python and templates of its own, so the built pages are the place.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx


def _breakable(cell: re.Match[str]) -> str:
    """In a table a long name in code breaks behind a mark of its own, not within a word."""
    marks = r"(::(?=\w)|[_/](?=\w)|\.(?=[A-Za-z]))(?=[\w./:]*</span>)"
    return re.sub(marks, r"\1<wbr>", cell[0])


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
    (r"(?s)<td>.*?</td>", _breakable),
    # So does one without code, and a module that heads a part of a page.
    (r"([_/])(?=[a-z][^<>\n]*</p></t[dh]>)", r"\1<wbr>"),
    (r'(?<=\w)([._])(?=[a-z][a-z_.]*<a class="headerlink")', r"\1<wbr>"),
    # So does a digest, in quarters.
    (r"([0-9a-f]{16})(?=(?:[0-9a-f]{16}){1,3}\b[^<>\n]*</p></td>)", r"\1<wbr>"),
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
