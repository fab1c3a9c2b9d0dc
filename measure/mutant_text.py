"""What makes a change a mutant, where it is, and why one that no test kills is harmless."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
REASONS = Path(__file__).parent / "harmless_mutants.json"


class Mutant(NamedTuple):
    """One changed module.

    Attributes:
        key: the same in every run as long as the function it is in stays as it is.
        function: where it is, with its class.
        line: the first line that differs.
        before: what stood there, on one line.
        after: what stands there now.
        source: the whole module.
    """

    key: str
    function: str
    line: int
    before: str
    after: str
    source: str


class _Bare(ast.NodeTransformer):
    """Leaves out what no test is asked about: docstrings, annotations, texts."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("text")

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if isinstance(node.value, ast.Constant) and node.value.value is None:
            node.value = None
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        # The star and the slash between parameters are no arithmetic.
        node.args, node.posonlyargs = node.posonlyargs + node.args + node.kwonlyargs, []
        node.defaults, node.kwonlyargs = node.defaults + node.kw_defaults, []
        node.kw_defaults = []
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant("type")
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        if all(isinstance(each, ast.Expr) for each in node.body):
            node.decorator_list = []  # it only says what others do
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else self.generic_visit(node)


def bare(source: str) -> str:
    """Returns what a module does, without its texts: two that differ in those alone are equal."""
    return ast.dump(_Bare().visit(ast.parse(source)))


def changed_lines(old: str, new: str) -> tuple[int, str, str]:
    """Returns the first line that differs, from 1, and the lines that do, each side as one line."""
    sides, start, same = (old.splitlines(), new.splitlines()), 0, 0
    most = min(map(len, sides))
    while start < most and sides[0][start] == sides[1][start]:
        start += 1
    while same < most - start and sides[0][-1 - same] == sides[1][-1 - same]:
        same += 1
    before, after = (
        " ".join(line.strip() for line in side[start : max(len(side) - same, start + 1)])
        for side in sides
    )
    return start + 1, before, after


def function_at(source: str, line: int) -> tuple[str, str]:
    """Returns the name, with its class, and the text of the innermost function around a line."""
    names, text = [], ""
    node: ast.AST | None = ast.parse(source)
    while node := next((each for each in ast.iter_child_nodes(node) if _holds(each, line)), None):
        names.append(node.name)
        if isinstance(node, ast.FunctionDef):
            text = ast.get_source_segment(source, node) or ""
    return ".".join(names) or "module", text


def _holds(node: ast.AST, line: int) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return False
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return first <= line <= (node.end_lineno or 0)


@cache
def reasons() -> dict[str, list[dict[str, str]]]:
    """Returns for each module its harmless mutants: `function`, `before`, `after`, `reason`."""
    return json.loads(REASONS.read_text(encoding="utf-8"))


def harmless(module: str, mutant: Mutant) -> str | None:
    """Returns why a mutant does no harm, or None where nobody has said so."""
    for each in reasons().get(module, []):
        if (each["function"], each["before"], each["after"]) == mutant[1:2] + mutant[3:5]:
            return each["reason"]
    return None
