"""Runs a notebook without Jupyter and holds its outputs against the stored ones.

    python tools/run_notebook.py chapters/01_foundations/first_cache.ipynb

For machines that have torch but no kernel. As strict as `nbval`: stdout and every text form of what
a cell shows must be as stored, pictures and live widgets apart, and anything on stderr is a
difference. Cells tagged `nbval-ignore-output` run without being compared. One thing is simpler than
in Jupyter: a value shows as its `repr`, so a last line that is a set or a function will not match,
and what a subprocess prints is not seen.

The last line printed is the verdict. Exit code 0: all as stored. 1: not. 4: something that the
notebook needs is not on this machine, and all before it was as stored.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib.util
import io
import json
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
UNSTABLE = "nbval-ignore-output"
NOT_COMPARED = ("image/png", "image/jpeg", "application/vnd.jupyter.widget-view+json")
FORMS = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}
NOT_RUN = 4
SHOWN = 3  # differing cells whose difference is printed in full

Outputs = list[tuple[str, str]]  # (stream or MIME type, text), in order


def stored(cell: dict[str, Any]) -> Outputs:
    """Returns what a cell of the file shows, in the form that a run gives."""
    found: Outputs = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            _add(found, output["name"], _joined(output["text"]))
        elif output["output_type"] == "error":
            found.append(("error", f"{output['ename']}: {output['evalue']}"))
        else:
            found += _kept({kind: _joined(data) for kind, data in output["data"].items()})
    return found


def _joined(text: Any) -> str:
    return "".join(text) if isinstance(text, list) else str(text)


def _kept(data: dict[str, Any]) -> Outputs:
    return sorted((k, _plain(str(v))) for k, v in data.items() if k not in NOT_COMPARED and v)


def _add(outputs: Outputs, stream: str, text: str) -> None:
    """Appends to the piece before where it is the same stream: where it is cut says nothing."""
    if outputs and outputs[-1][0] == stream:
        text = outputs.pop()[1] + text
    outputs.append((stream, text))


def _plain(text: str) -> str:
    return text.replace(f"{ROOT}/", "").replace(f"{Path.home()}/", "~/")


def forms(value: Any) -> Outputs:
    """Returns the text forms of a value, as Jupyter asks for them."""
    data: dict[str, Any] = {"text/plain": repr(value)}
    if not isinstance(value, type):
        methods = {kind: getattr(value, name, None) for kind, name in FORMS.items()}
        data |= {kind: method() for kind, method in methods.items() if method}
        if bundle := getattr(value, "_repr_mimebundle_", None):
            given = bundle(include=None, exclude=None)
            data |= given[0] if isinstance(given, tuple) else given
    return _kept(data)


class _Stream(io.TextIOBase):
    """A stdout or stderr that writes into the outputs of the cell that runs."""

    def __init__(self, name: str, outputs: Outputs) -> None:
        self.name, self._outputs = name, outputs

    def write(self, text: str) -> int:
        if text:
            _add(self._outputs, self.name, text)
        return len(text)


def run_cell(
    source: str, name: str, module: types.ModuleType
) -> tuple[Outputs, BaseException | None]:
    """Runs one cell in the namespace of `module`; returns its outputs, and what it raised."""
    outputs: Outputs = []

    def display(*values: Any) -> None:
        for value in values:
            outputs.extend(forms(value))

    module.display = display
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    error = None
    with (
        contextlib.redirect_stdout(_Stream("stdout", outputs)),
        contextlib.redirect_stderr(_Stream("stderr", outputs)),
    ):
        try:
            _execute(source, name, module.__dict__, display)
        except (Exception, SystemExit) as raised:
            error = raised
            outputs.append(("error", f"{type(raised).__name__}: {raised}"))
    return [(kind, _plain(text)) for kind, text in outputs], error


def _execute(source: str, name: str, names: dict[str, Any], display: Callable[[Any], None]) -> None:
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    # Without dont_inherit, the future imports of this file would hold in the notebook too.
    exec(compile(tree, name, "exec", dont_inherit=True), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)
        if value is not None:
            display(value)


def same(old: Outputs, new: Outputs) -> bool:
    """Returns whether outputs agree; long lists may break lines elsewhere, as Jupyter's do."""

    def even(outputs: Outputs) -> Outputs:
        return [
            (kind, " ".join(text.split()) if kind == "text/plain" and text[0] in "[({" else text)
            for kind, text in outputs
        ]

    return even(old) == even(new)


def difference(old: Outputs, new: Outputs) -> str:
    """Returns a diff of two cells' outputs, HTML and SVG one tag a line."""
    lines = [
        [row for kind, text in side for row in (f"[{kind}]", *_rows(text))] for side in (old, new)
    ]
    return "\n".join(difflib.unified_diff(*lines, "stored", "this run", n=1, lineterm=""))


def _rows(text: str) -> list[str]:
    return text.replace("><", ">\n<").split("\n")


def missing_package(error: BaseException | None) -> str:
    """Returns the package whose absence is why something raised, or an empty string."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.split(".")[0]
            if importlib.util.find_spec(package) is None:
                return package
        error = error.__cause__
    return ""


def lacking(error: BaseException | None) -> str:
    """Returns what this machine lacks, where that is why a cell raised; else an empty string."""
    if package := missing_package(error):
        return f"needs {package}, which is not installed"
    if isinstance(error, RuntimeError) and _origin(error) == "kvlib.tensors.model_cache":
        return f"needs the real model: {' '.join(str(error).split())}"
    return ""


def _origin(error: BaseException) -> str:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__", "") if frames else ""


def faults(
    cell: dict[str, Any], number: int, module: types.ModuleType
) -> tuple[str, BaseException | None]:
    """Runs one cell; returns how its outputs are not as stored, if so, and what it raised."""
    source = _joined(cell["source"])
    outputs, error = run_cell(source, f"<cell {number}>", module)
    expected = stored(cell)
    if unstable(cell):
        expected, outputs = [], [output for output in outputs if output[0] == "stderr"]
    silent = not any(kind == "stderr" for kind, _ in outputs)
    if error is None and silent and same(expected, outputs):
        return "", None
    trace = "".join(traceback.format_exception(error)) if error else ""
    return f"cell {number}:\n{source}\n{trace}{difference(expected, outputs)}\n", error


def unstable(cell: dict[str, Any]) -> bool:
    return UNSTABLE in cell["metadata"].get("tags", ())


def run(path: Path) -> tuple[int, str]:
    """Runs a notebook in this process, printing what differs; returns exit code and verdict."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = {number: cell for number, cell in enumerate(cells) if cell["cell_type"] == "code"}
    if not any(cell["outputs"] for cell in code.values()):
        return 1, "failed: no output is stored, so there is nothing to compare"
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    wrong: list[int] = []
    for number, cell in code.items():
        report, error = faults(cell, number, module)
        reason = lacking(error)
        if reason and not wrong:
            before = list(code).index(number)
            return NOT_RUN, f"not run: {before} cells as stored, cell {number} {reason}"
        if report and not reason:
            wrong.append(number)
            print(report if len(wrong) <= SHOWN else f"cell {number} differs as well")
        if error:
            break
    if wrong:
        return 1, f"failed: not as stored: cells {', '.join(map(str, wrong))}"
    compared = sum(not unstable(cell) for cell in code.values())
    return 0, f"passed: {compared} cells as stored, {len(code) - compared} not compared"


if __name__ == "__main__":
    notebook = Path(sys.argv[1]).resolve()
    os.chdir(notebook.parent)
    sys.path[:1] = [str(notebook.parent), str(ROOT)]  # a kernel sees its folder, not this script's
    exit_code, verdict = run(notebook)
    print(verdict)
    sys.exit(exit_code)
