"""Reads docstrings and signatures on the API pages the way they were meant.

Napoleon takes `Slots in use: rows times length` of a property for a type and a description, and a
sentence under "Raises" for the name of an error; autodoc calls every field of a named tuple an
"Alias for field number 0". A default that is no source, such as `<factory>`, keeps Sphinx from
reading a signature, which then shows each type's whole path.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.inspect import signature_from_str, stringify_signature

ERRORS = re.compile(r"    \w[\w.]*(, \w[\w.]*)*:(\s|$)")
UNREADABLE = re.compile(r"(?<== )<(?:(?:function |class ')([\w.]+)'?|(?:[^<>]|<\w+>)*)>")


def sentences_out(lines: list[str]) -> list[str]:
    """What "Raises" says of all its errors becomes a paragraph below them, or its only text."""
    if "Raises:" not in lines:
        return lines
    start = lines.index("Raises:")
    after = range(start + 1, len(lines))
    end = next((i for i in after if lines[i] and not lines[i].startswith(" ")), len(lines))
    errors: list[str] = []
    sentences: list[str] = []
    into = errors
    for line in filter(None, lines[start + 1 : end]):
        if not line.startswith("     "):
            into = errors if ERRORS.match(line) else sentences
        into.append(line)
    if not sentences:
        return lines
    text = " ".join(line.strip() for line in sentences)
    said = ["Raises:", *errors, "", text] if errors else [f":Raises: {text}"]
    return [*lines[:start], *said, "", *lines[end:]]


def _raises(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = sentences_out(lines)


def _property(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "property":
        text = "\n".join(sentences_out((inspect.getdoc(obj) or "").splitlines()))
        lines[:] = GoogleDocstring(text, app.config, app, "method", name, obj, options).lines()


def readable(signature: str) -> str:
    """Defaults that are source, so that Sphinx can read the signature; no private parameters."""
    signature = UNREADABLE.sub(lambda m: (m[1] or "...").rpartition(".")[2] or "...", signature)
    if not re.search(r"[(,] ?_[a-z]\w*:", signature):
        return signature
    read = signature_from_str(signature)
    public = [p for p in read.parameters.values() if not p.name.startswith("_")]
    return stringify_signature(read.replace(parameters=public))


def _signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    return (readable(signature), returned) if signature else None


def _skip_field(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    is_field = str(getattr(obj, "__doc__", "")).startswith("Alias for field number")
    return True if is_field else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Sentences are moved before napoleon reads them; a property is read after it, once more."""
    app.connect("autodoc-process-docstring", _raises, priority=400)
    app.connect("autodoc-process-docstring", _property, priority=900)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip_field)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
