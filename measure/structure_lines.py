"""Lines of code of each structure in chapter 4's table: what it adds to what all share."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Sequence
from pathlib import Path

from record import ROOT

# What each structure adds to what all share: the step, the store, the attention of a run.
SOURCES = {
    "contiguous": ("ledger.py", "tensors/contiguous.py:ContiguousKVCache"),
    "blocked": (
        *("blocks.py", "block_table.py", "paged_ledger.py"),
        *("tensors/paged.py", "tensors/paged_context.py", "tensors/paged_attention.py"),
        *("tensors/attention_parts.py", "tensors/way_choice.py:choose_way"),
    ),
    # One row of few slots serves both: without sinks it is a ring.
    "newest only": (
        *("partial_rows.py", "rolling_ledger.py", "token_budget.py:sinks_and_window"),
        "tensors/sink_window.py",
    ),
    "first and newest": (
        *("partial_rows.py", "rolling_ledger.py", "token_budget.py:sinks_and_window"),
        "tensors/sink_window.py:SinkWindowKVCache",
    ),
    "heavy hitters": (
        *("partial_rows.py", "budget_ledger.py:BudgetLedger", "token_budget.py"),
        *("tensors/per_head.py", "tensors/heavy_hitters.py"),
    ),
    "prompt picked": (
        *("partial_rows.py", "budget_ledger.py:BudgetLedger,PromptBudgetLedger"),
        *("token_budget.py", "tensors/per_head.py", "tensors/snap.py"),
    ),
    "reads few blocks": (
        *("step_parts.py", "tensors/block_bounds.py", "tensors/chosen_blocks.py"),
        "tensors/top_blocks.py",
        *("blocks.py", "block_table.py", "paged_ledger.py"),
        *("tensors/paged.py", "tensors/paged_context.py", "tensors/paged_attention.py"),
        *("tensors/attention_parts.py", "tensors/way_choice.py:choose_way"),
    ),
}


def code_lines(path: Path, names: Sequence[str] = ()) -> int:
    """Returns the lines of a file that hold code: no docstrings, comments or blanks.

    Args:
        path: a Python file.
        names: count only the top-level classes and functions of these names.

    Raises:
        ValueError: there is no such class or function.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            docs.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    skip = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    with path.open("rb") as file:
        found = [t for t in tokenize.tokenize(file.readline) if t.type not in skip and t.string]
    lines = {n for t in found for n in range(t.start[0], t.end[0] + 1)} - docs - {0}
    if not names:
        return len(lines)
    nodes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    if missing := [name for name in names if name not in nodes]:
        raise ValueError(f"{path.name} has no {missing}, only {sorted(nodes)}")
    spans = [range(nodes[name].lineno, nodes[name].end_lineno + 1) for name in names]
    return sum(line in span for span in spans for line in lines)


def lines_of(name: str) -> int:
    """Returns the lines of code of a structure, kernels and what all share left out."""
    total = 0
    for source in SOURCES[name]:
        path, _, names = source.partition(":")
        total += code_lines(ROOT / "kvlib" / path, names.split(",") if names else ())
    return total
