"""Keeps the thebe scripts out of every page.

Jupyter Book always loads thebe, which would ask a server for a kernel. This book runs its Python
in the page or not at all, and the two script tags clash: each page would log an error.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def _is_thebe(script: Any) -> bool:
    source = str(getattr(script, "filename", script) or "")
    body = str(getattr(script, "attributes", {}).get("body", ""))
    return "thebe" in source.lower() or "THEBE_JS_URL" in body


def _drop(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    context["script_files"] = [s for s in context["script_files"] if not _is_thebe(s)]
    context["css_files"] = [s for s in context["css_files"] if not _is_thebe(s)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects after sphinx-thebe, which adds its scripts on the same event."""
    app.connect("html-page-context", _drop, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
