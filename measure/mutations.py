"""Which mutants a module has: one small change each, by operators of Cosmic Ray and four more.

Boundaries, comparisons, off-by-ones, arithmetic, conditions, dropped lines. Nobody is asked about
the texts of errors, docstrings and annotations, so a change that touches only those is none.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import parso
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.exception_replacer import (
    CosmicRayTestingException,
    ExceptionReplacer,
)
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider
from parso.python import tree

from mutant_text import Mutant, bare, changed_lines, function_at

COMPARISONS = {"Lt": "LtE GtE", "LtE": "Lt Gt", "Gt": "GtE LtE", "GtE": "Gt Lt"}
COMPARISONS |= {"Eq": "NotEq", "NotEq": "Eq", "Is": "IsNot", "IsNot": "Is"}
ARITHMETIC = {"Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "FloorDiv": "Mul"}
ARITHMETIC |= {"Mod": "FloorDiv", "Pow": "Mul", "LShift": "RShift", "RShift": "LShift"}
ARITHMETIC |= {"BitOr": "BitAnd", "BitAnd": "BitOr", "BitXor": "BitAnd"}
NAMES = [
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, to in COMPARISONS.items() for b in to.split()),
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in ARITHMETIC.items()),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub", "NumberReplacer"),
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse"),
    *("ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *("ZeroIterationForLoop", "RemoveDecorator"),
]


class DropStatement(Operator):
    """Leaves a statement out; of a `return` its value."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the place of a statement that does something."""
        if node.type == "simple_stmt" and self._rest(node.children[0]) is not None:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Puts what is left in the statement's place."""
        first = node.children[0]
        node.children[0] = parso.parse(first.get_first_leaf().prefix + self._rest(first))
        return node

    def _rest(self, node: Any) -> str | None:
        if node.type == "return_stmt":
            return "return"
        if node.type == "expr_stmt" and self._declares(node):
            return None  # a field that is only declared
        told = ("expr_stmt", "atom_expr", "power", "del_stmt", "raise_stmt", "assert_stmt")
        return "pass" if node.type in (*told, "yield_expr") or node == "return" else None

    def _declares(self, node: Any) -> bool:
        second = node.children[1]
        return second.type == "annassign" and "=" not in second.children

    @classmethod
    def examples(cls) -> tuple[tuple[str, str], ...]:
        """Shows it."""
        return (("x = 1\n", "pass\n"), ("return x\n", "return\n"))


class SwapName(Operator):
    """Puts `min` in the place of `max`, and `max` in that of `min`."""

    SWAPPED = {"min": "max", "max": "min"}  # noqa: RUF012

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the place of a name that is called, and is no attribute."""
        if isinstance(node, tree.Name) and node.value in self.SWAPPED:
            after = node.get_next_leaf()
            if after == "(" and node.get_previous_leaf() != ".":
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Writes the other name."""
        node.value = self.SWAPPED[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[tuple[str, str], ...]:
        """Shows it."""
        return (("min(a, b)", "max(a, b)"),)


class SwapIn(Operator):
    """Asks for the opposite of `in` and of `not in`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the place of a test for membership."""
        if node.type == "comparison" and self._text(node) in ("in", "not in"):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Writes the opposite."""
        opposite = " in" if self._text(node) == "not in" else " not in"
        node.children[1] = tree.Operator(opposite, node.children[1].start_pos)
        return node

    def _text(self, node: Any) -> str:
        return " ".join(node.children[1].get_code().split())

    @classmethod
    def examples(cls) -> tuple[tuple[str, str], ...]:
        """Shows it."""
        return (("a in b", "a not in b"),)


class OneSide(Operator):
    """Leaves out the first, then the second half of `a and b` and of `a or b`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the place of a choice of two, once for each."""
        if node.type in ("and_test", "or_test") and len(node.children) == 3:
            yield node.start_pos, node.end_pos
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Keeps one side."""
        kept = node.children[2 * index].get_code(include_prefix=False)
        return parso.parse(f"{node.get_first_leaf().prefix}({kept})")

    @classmethod
    def examples(cls) -> tuple[tuple[str, str], ...]:
        """Shows it."""
        return (("a and b", "(a)"), ("a and b", "(b)"))


class ReplaceException(ExceptionReplacer):
    """Catches what nobody raises, as Cosmic Ray's own does; a name with a dot, too."""

    def mutate(self, node: Any, index: int) -> Any:
        """Puts the other exception in the place of one that is caught."""
        caught = self._name_nodes(node)[index]
        if isinstance(caught, tree.Name):
            return super().mutate(node, index)
        others, prefix = caught.parent.children, caught.get_first_leaf().prefix
        nobody = CosmicRayTestingException.__name__
        others[others.index(caught)] = tree.Name(nobody, caught.start_pos, prefix)
        return node


def operators() -> dict[str, Operator]:
    """Returns every operator that is applied, by name."""
    known = OperatorProvider()
    own = (DropStatement, SwapName, SwapIn, OneSide, ReplaceException)
    return {n: known[n]() for n in NAMES} | {each.__name__: each() for each in own}


def mutants(source: str) -> list[Mutant]:
    """Returns every mutant of a module that parses and does something else, each once."""
    seen, found, times = {bare(source)}, [], Counter()
    nodes = list(_nodes(parso.parse(source)))
    for operator in operators().values():
        count = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        for occurrence in range(count):
            changed = MutationVisitor(occurrence, operator).walk(parso.parse(source)).get_code()
            try:
                does = bare(changed)
                compile(changed, "mutant", "exec")
            except SyntaxError:
                continue
            if does not in seen:
                seen.add(does)
                found.append(_named(source, changed, times))
    return sorted(found, key=lambda mutant: mutant.line)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _named(source: str, changed: str, times: Counter[tuple[str, ...]]) -> Mutant:
    line, before, after = changed_lines(source, changed)
    function, text = function_at(source, line)
    times[function, before, after] += 1
    parts = (function, text, before, after, str(times[function, before, after]))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return Mutant(key, function, line, before, after, changed)
