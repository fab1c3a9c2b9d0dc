"""Every notebook of the book is complete, honest and readable; and the checker notices when not."""

from __future__ import annotations

import ast
import copy
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted(ROOT.glob("chapters/*/*.ipynb"))
UNSTABLE = "nbval-ignore-output"
TAGS = {UNSTABLE, "hide-input", "hide-output", "hide-cell", "remove-input", "full-width"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
# An absolute path of two or more parts; not a closing tag, a fraction or an address.
PATH = re.compile(r"(?<![\w:/.<~)])/[A-Za-z][\w.-]*/[\w.-]+|[A-Z]:\\\w|ipykernel_\d")
# "x at 0x7f...": the address of an object.
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
# What a widget shows in place of a picture that could not be drawn.
BROKEN = 'class="kv-error"'
MEDIAN_LINES, MOST_LINES, CODE_CELLS = 6, 25, range(12, 29)

Cell = dict[str, Any]


def text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def tree(cell: Cell) -> ast.Module:
    # Jupyter's own syntax, such as %time, is no Python and is refused with the rest.
    return ast.parse(text(cell["source"]))


def tags(cell: Cell) -> list[str]:
    return cell["metadata"].get("tags", [])


def code_cells(notebook: Cell) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def texts(output: Cell) -> Iterator[str]:
    yield text(output.get("text", ""))
    for kind, content in output.get("data", {}).items():
        if kind.startswith("text/"):
            yield text(content)


def displays(cell: Cell) -> bool:
    """Says whether a cell surely shows something: it prints, or ends in a value."""
    body = tree(cell).body
    calls = [node.value for node in body if isinstance(node, ast.Expr)]
    prints = any(
        isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
        for call in calls
    )
    last = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    shows = isinstance(last, ast.Call) and ast.unparse(last.func).startswith("show.")
    return prints or shows or (last is not None and not isinstance(last, ast.Call))


def ends_in_a_semicolon(source: str) -> bool:
    """Comments and empty lines behind it do not count, as they do not for Jupyter."""
    passed_over = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    last = [token.string for token in tokens if token.type not in passed_over][-1:]
    return last == [";"]


def passes_either_way(node: ast.AST) -> bool:
    """Says whether a part of a cell catches an error, and nobody sees it if there is none."""
    if isinstance(node, ast.Try):
        silent = all(isinstance(part, ast.Pass) for h in node.handlers for part in h.body)
        return bool(node.handlers) and silent and not node.orelse
    return False


def catches_to_show(node: ast.AST) -> bool:
    """Says whether a part of a cell prints the error that it catches."""
    handlers = node.handlers if isinstance(node, ast.Try) else ()
    return any("print(" in ast.unparse(handler) for handler in handlers)


def faults_of_cell(cell: Cell) -> Iterator[str]:
    source = text(cell["source"])
    names = {node.id for node in ast.walk(tree(cell)) if isinstance(node, ast.Name)}
    imports = {
        name.split(".")[0]
        for node in ast.walk(tree(cell))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([getattr(node, "module", None)] + [alias.name for alias in node.names])
        if name
    }
    if unknown := set(tags(cell)) - TAGS:
        yield f"has the tags {sorted(unknown)}; catch an error and assert its type and message"
    if {"interact", "interactive", "ipywidgets"} & (names | imports):
        yield "makes widgets of its own; use show.widget"
    if {"plt", "matplotlib", "pyplot"} & (names | imports):
        yield "plots by hand; use show.line_plot or show.bar_plot"
    if ends_in_a_semicolon(source):
        yield "ends in a semicolon, which hides nothing when the notebook is compared"
    if any(passes_either_way(node) for node in ast.walk(tree(cell))):
        yield "passes whether it raises or not; say in the handler what came, or assert it"
    if len([line for line in source.splitlines() if line.strip()]) > MOST_LINES:
        yield f"is longer than {MOST_LINES} lines"
    if displays(cell) and not cell["outputs"]:
        yield "shows something, but no output is stored; run tools/notebooks.py"
    if any(catches_to_show(node) for node in tree(cell).body) and not cell["outputs"]:
        yield "is to show an error, and nothing came"
    for output in cell["outputs"]:
        yield from faults_of_output(output, cell)


def faults_of_output(output: Cell, cell: Cell) -> Iterator[str]:
    if output["output_type"] == "error":
        yield "stored an error"
    if output.get("name") == "stderr":
        yield "stored stderr"
    data = output.get("data", {})
    if WIDGET_VIEW in data:
        yield "stored a live widget; run tools/notebooks.py"
    if any(PATH.search(part) for part in texts(output)):
        yield "stored a path of a machine"
    if any(BROKEN in part for part in texts(output)):
        yield "stored the error of a drawing"
    if any(ADDRESS.search(part) for part in texts(output)):
        yield "stored the address of an object"
    if any(kind.startswith("image/") for kind in data):
        yield from faults_of_image(output, cell)


def faults_of_image(output: Cell, cell: Cell) -> Iterator[str]:
    page = cell["metadata"].get("mystnb", {})
    alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
    if len(alt.split()) < 8:
        yield "stored an image without a description; draw it through kvlib.show"
    elif page.get("image", {}).get("alt") != alt:
        yield "has an image description the page does not get; run tools/notebooks.py"
    figure = page.get("figure", {})
    if not figure.get("caption") or not figure.get("name", "").startswith("fig-"):
        yield "shows an image without caption and a name fig-… in its metadata"


def faults_of_picture(cells: list[Cell], index: int) -> Iterator[str]:
    """Pictures are not compared: this cell, the one before or the next asserts their numbers.

    So does a description with computed numbers, which is compared as the picture's text.
    """
    kinds = [kind for output in cells[index]["outputs"] for kind in output.get("data", {})]
    if not any(kind.startswith("image/") for kind in kinds):
        return
    before = [cell for cell in cells[:index] if cell["cell_type"] == "code"]
    after = [cell for cell in cells[index:] if cell["cell_type"] == "code"]
    nodes = (node for cell in (*before[-1:], *after[:2]) for node in ast.walk(tree(cell)))
    asserted = any(isinstance(node, ast.Assert) for node in nodes)
    described = UNSTABLE not in tags(cells[index]) and any(
        isinstance(node, ast.keyword) and node.arg == "alt" and computed(node.value)
        for node in ast.walk(tree(cells[index]))
    )
    if not asserted and not described:
        yield "draws a picture, and nobody asserts the numbers behind it"


def computed(words: ast.expr) -> bool:
    return any(isinstance(node, ast.FormattedValue) for node in ast.walk(words))


def faults_of_unstable(cells: list[Cell], index: int) -> Iterator[str]:
    """Says what an uncompared cell lacks: a reason, and the next code cell to assert its fact."""
    source, before = text(cells[index]["source"]), cells[index - 1] if index else None
    if "#" not in source and not (before and before["cell_type"] == "markdown"):
        yield "is not compared and says not why"
    after = next((cell for cell in cells[index + 1 :] if cell["cell_type"] == "code"), None)
    asserts = after and any(isinstance(node, ast.Assert) for node in ast.walk(tree(after)))
    if not asserts or UNSTABLE in tags(after):
        yield "is not compared, and no compared cell after it asserts what it shows"


def faults(notebook: Cell) -> list[str]:
    """Returns everything that is wrong with a notebook, a sentence each."""
    found = []
    code = code_cells(notebook)
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        found.append("the cells were not run once each, in order; run tools/notebooks.py")
    ids = [cell.get("id") for cell in notebook["cells"]]
    if ids != [f"c{index:03d}" for index in range(len(ids))]:
        found.append("cells are not numbered c000, c001, ...; run tools/notebooks.py")
    if "widgets" in notebook["metadata"]:
        found.append("the state of widgets is stored; run tools/notebooks.py")
    if len(code) not in CODE_CELLS:
        found.append(f"{len(code)} code cells; a page has {CODE_CELLS[0]} to {CODE_CELLS[-1]}")
    lengths = [len([row for row in text(c["source"]).splitlines() if row.strip()]) for c in code]
    if lengths and median(lengths) > MEDIAN_LINES:
        found.append(f"the median code cell has {median(lengths)} lines, more than {MEDIAN_LINES}")
    for index, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            unstable = (
                faults_of_unstable(notebook["cells"], index) if UNSTABLE in tags(cell) else ()
            )
            head = text(cell["source"]).splitlines()[:1]
            picture = faults_of_picture(notebook["cells"], index)
            found += [
                f"cell {index} {head}: {fault}"
                for fault in (*faults_of_cell(cell), *picture, *unstable)
            ]
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_complete_and_honest(path: Path) -> None:
    found = faults(json.loads(path.read_text(encoding="utf-8")))
    assert not found, "\n".join([str(path.relative_to(ROOT)), *found])


def test_the_book_has_notebooks() -> None:
    assert NOTEBOOKS


# From here on: made-up notebooks, to prove that the checker sees what it should.


def code(source: str, *outputs: Cell, **metadata: Any) -> Cell:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": metadata,
        "source": source,
        "outputs": list(outputs),
    }


def stdout(words: str, name: str = "stdout") -> Cell:
    return {"output_type": "stream", "name": name, "text": words}


def result(data: Cell, **metadata: Any) -> Cell:
    return {"output_type": "execute_result", "data": data, "metadata": metadata}


ALT = "Two lines that part: without a cache work grows faster than the text."
FIGURE = {"figure": {"caption": "Work.", "name": "fig-work"}, "image": {"alt": ALT}}
PLOT = result({"image/png": "…", "text/plain": f"Plot: {ALT}"}, **{"image/png": {"alt": ALT}})


def made_up(*cells: Cell) -> Cell:
    """A notebook of enough good cells, the given ones among them."""
    filler = [code("x = 1\nassert x") for _ in range(14 - len(cells))]
    notebook = {"metadata": {}, "cells": copy.deepcopy([*cells, *filler])}
    for count, cell in enumerate(code_cells(notebook), start=1):
        cell["execution_count"] = count
    for index, cell in enumerate(notebook["cells"]):
        cell["id"] = f"c{index:03d}"
    return notebook


GOOD = made_up(
    code("print(1)", stdout("1, and/or 2 GB/s, see https://a.org/b/c\n")),
    code(
        "show.widget('a')", result({"text/html": "<p></p><a href='x'>y</a>", "text/plain": "a()"})
    ),
    code("assert a\nshow.line_plot(a, alt=b)", PLOT, mystnb=FIGURE),
    code("print(t)  # takes its time", stdout("3 s"), tags=[UNSTABLE]),
    code("assert t > 0"),
)


def test_a_good_notebook_passes() -> None:
    assert faults(GOOD) == []


def bare(cell: Cell, **changes: Any) -> Cell:
    return {**cell, **changes}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([code("print(1)")], "no output is stored"),
        ([code("x = 2\nx")], "no output is stored"),
        ([code("x = 2\nx == 2")], "no output is stored"),
        ([code("show.exercise('a')")], "no output is stored"),
        ([code("f()", stdout("w", "stderr"))], "stored stderr"),
        ([code("f()", {"output_type": "error", "ename": "E"})], "stored an error"),
        ([code("f()", tags=["raises-exception"])], "raises-exception"),
        ([code("f()", tags=["nbval-skip"])], "nbval-skip"),
        ([code("print(t)  # slow", stdout("3"), tags=[UNSTABLE])] * 2, "no compared cell after it"),
        ([code("print(t)  # slow", stdout("3"), tags=[UNSTABLE]), code("y = 1")], "asserts what"),
        ([code("print(t)", stdout("3"), tags=[UNSTABLE])], "says not why"),
        ([code("w", result({WIDGET_VIEW: {}, "text/plain": "w"}))], "stored a live widget"),
        ([code("from ipywidgets import interact")], "makes widgets of its own"),
        ([code("import ipywidgets as w")], "makes widgets of its own"),
        ([code("interact(f)")], "makes widgets of its own"),
        ([code("plt.plot(a)")], "plots by hand"),
        ([code("import matplotlib.pyplot as p")], "plots by hand"),
        ([code("f(x);")], "ends in a semicolon"),
        ([code("f(x);  # drawn")], "ends in a semicolon"),
        ([code("try:\n    f()\nexcept ValueError:\n    pass")], "passes whether it raises"),
        ([code("try:\n    f()\nexcept ValueError as e:\n    print(e)")], "nothing came"),
        ([code("show.p()", PLOT, mystnb=FIGURE), code("y = 1")], "nobody asserts the numbers"),
        (
            [code("show.p(alt='A line.')", PLOT, mystnb=FIGURE), code("y = 1")],
            "nobody asserts the numbers",
        ),
        (
            [
                code("show.p(alt=f'{y}')  # s", PLOT, mystnb=FIGURE, tags=[UNSTABLE]),
                code("y = 1"),
            ],
            "nobody asserts the numbers",
        ),
        ([code("\n".join("x = 1" for _ in range(26)))], "longer than 25 lines"),
        ([code("print(p)", stdout("in /somewhere/deep/file.py"))], "path of a machine"),
        ([code("p", result({"text/plain": "PosixPath('/a/b')"}))], "path of a machine"),
        ([code("p", result({"text/plain": "<f at 0x7fed64b4f6a0>"}))], "address of an object"),
        ([code("w", result({"text/html": '<pre class="kv-error">E</pre>'}))], "error of a drawing"),
        ([code("show.p()", result({"image/png": "…"}), mystnb=FIGURE)], "without a description"),
        ([code("show.p()", PLOT, mystnb={"figure": FIGURE["figure"]})], "the page does not get"),
        ([code("show.p()", PLOT, mystnb={"image": {"alt": ALT}})], "without caption"),
        ([code("\n".join("x = 1" for _ in range(7)))] * 9, "median code cell has 7"),
    ],
)
def test_the_checker_sees_a_fault(cells: list[Cell], words: str) -> None:
    assert any(words in fault for fault in faults(made_up(*cells))), faults(made_up(*cells))


def test_the_checker_sees_a_stripped_notebook() -> None:
    stripped = copy.deepcopy(GOOD)
    for cell in stripped["cells"]:
        cell.update(execution_count=None, outputs=[])
    assert any("not run once each" in fault for fault in faults(stripped))


def test_the_checker_sees_cells_run_out_of_order() -> None:
    swapped = copy.deepcopy(GOOD)
    swapped["cells"][0]["execution_count"], swapped["cells"][1]["execution_count"] = 2, 1
    assert any("not run once each" in fault for fault in faults(swapped))


def test_the_checker_sees_a_cell_put_in_by_hand() -> None:
    more = copy.deepcopy(GOOD)
    more["cells"].insert(1, {**code("x = 3"), "id": "4f1c", "execution_count": 2})
    assert any("not numbered" in fault for fault in faults(more))


def test_the_checker_sees_too_few_cells_and_stored_widget_state() -> None:
    short = {"metadata": {"widgets": {}}, "cells": copy.deepcopy(GOOD["cells"][:4])}
    assert any("4 code cells" in fault for fault in faults(short))
    assert any("state of widgets" in fault for fault in faults(short))
