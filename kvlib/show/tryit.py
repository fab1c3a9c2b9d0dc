"""Runs a few lines that a reader may change: what a try-it box shows, in every host."""

from __future__ import annotations

import ast
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

from kvlib.exercises import explain


@dataclass(frozen=True)
class Outcome:
    """What running a source gave.

    Attributes:
        printed: what it wrote to standard output.
        value: the `repr` of its last expression; empty if that is None or there is none.
        error: the exception that ended it, as a sentence; empty if none did.
    """

    printed: str = ""
    value: str = ""
    error: str = ""

    @property
    def text(self) -> str:
        """All of it, as a cell would show it."""
        lines = (self.printed.rstrip("\n"), self.value, self.error)
        return "\n".join(line for line in lines if line)


def run(source: str) -> Outcome:
    """Runs a source in a fresh namespace, as a cell runs: the last expression is shown.

    What raises ends the run and is part of the outcome, not an error here.

    Example:
        >>> run("x = 6; x * 7").value
        '42'
        >>> run("1 / 0").error
        'ZeroDivisionError in line 1: division by zero'
    """
    namespace: dict[str, Any] = {"__name__": "answer"}
    printed, value, error = StringIO(), "", ""
    with redirect_stdout(printed):
        try:
            tree = ast.parse(source, "answer")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "answer", "exec"), namespace)
            if last is not None:
                shown = eval(compile(ast.Expression(last.value), "answer", "eval"), namespace)
                value = "" if shown is None else repr(shown)
        except (Exception, SystemExit) as raised:
            error = explain(raised)
    return Outcome(printed.getvalue(), value, error)
