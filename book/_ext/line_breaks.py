"""Where a line of the built pages may break and where it may not.

A number and its unit stay on one line; a long name in code breaks behind a mark of its own, not
within a word. Neither docutils nor the theme has a place for this, so the built pages are it.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

# What is printed as it stands, what is no text at all, and tags.
APART = re.compile(r"(?s)<(head|pre|script|style|svg|textarea)\b.*?</\1>|<[^<>]*>")
UNIT = re.compile(r"(?<=\d) (?=(?:%|[kKMGT]i?B|[kMGT]?FLOP|[mµn]?s|min|h)(?:/s)?(?!\w))")


def _breakable(name: re.Match[str]) -> str:
    marks = r"(::(?=\w)|[_/](?=\w)|\.(?=[A-Za-z]))(?=[\w./:]*</span>)"
    return re.sub(marks, r"\1<wbr>", name[0])


BREAKS = (
    # A name in code, in the narrow column of a table or where it is long.
    (r"(?s)<td>.*?</td>", _breakable),
    (r'<span class="pre">[^<>]{18,}</span>', _breakable),
    # So does a name without code in a table, and a module that heads a part of a page.
    (r"([_/])(?=[a-z][^<>\n]*</p></t[dh]>)", r"\1<wbr>"),
    (r'(?<=\w)([._])(?=[a-z][a-z_.]*<a class="headerlink")', r"\1<wbr>"),
    # So does a digest, in quarters.
    (r"([0-9a-f]{16})(?=(?:[0-9a-f]{16}){1,3}\b[^<>\n]*</p></td>)", r"\1<wbr>"),
)


def with_breaks(html: str) -> str:
    """Returns a page whose lines break well; such a page stays as it is."""
    for where, right in BREAKS:
        html = re.sub(where, right, html)
    found, end = [], 0
    for apart in APART.finditer(html):
        found += [UNIT.sub("\N{NO-BREAK SPACE}", html[end : apart.start()]), apart[0]]
        end = apart.end()
    return "".join([*found, UNIT.sub("\N{NO-BREAK SPACE}", html[end:])])


def _finished(app: Sphinx, failed: Exception | None) -> None:
    if failed or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        before = path.read_text(encoding="utf-8")
        if (after := with_breaks(before)) != before:
            path.write_text(after, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Runs once the pages are written."""
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
