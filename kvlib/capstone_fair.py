"""What an engine's file may not ask for, told from its text before it runs."""

from __future__ import annotations

import ast

from kvlib.capstone import Refused

# What no engine needs. It keeps honest people honest: it is no wall against an attacker.
_FORBIDDEN = frozenset(("gc", "inspect", "ctypes", "importlib", "builtins", "time", "sys"))
_INSIDE = ("capstone", "Llama", "load_model")


def require_fair(source: str, name: str = "<engine>") -> None:
    """Refuses a file that reaches for the judge, for the answers or for a clock of its own.

    Args:
        source: the file's text.
        name: of the file, for the message of a `SyntaxError`.

    Raises:
        Refused: it imports what no engine needs, or makes a model. The message names it.
        SyntaxError: it is no Python.
    """
    for node in ast.walk(ast.parse(source, name)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval"):
            raise Refused(f"an engine should not call {node.id}, yours does")
        elif isinstance(node, ast.Attribute) and node.attr.startswith(_INSIDE):
            raise Refused(f"an engine should not look at {node.attr!r}, yours does")
        for each in names:
            parts = each.split(".")
            if found := [p for p in parts if p in _FORBIDDEN or p.startswith(_INSIDE)]:
                raise Refused(f"an engine should not import {found[0]!r}, yours imports {each!r}")
