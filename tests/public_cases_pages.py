"""Public cases about notebooks, widgets and the build: what is stored, and what a check would see.

What needs the built book or a browser is tried in `test_pages.py`, beside these.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

import built_book
from kvlib import show
from kvlib.show import live
from kvlib.show.drawings import Slider, registry
from public_cases import PAGES, case
from test_book import listed
from test_notebook_tool import tool
from test_notebooks import (
    FIGURE,
    NOTEBOOKS,
    PLOT,
    code,
    code_cells,
    faults,
    made_up,
    result,
    stdout,
    text,
)

ROOT = Path(__file__).resolve().parents[1]


def config():
    return yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))


def outputs():
    """Every stored output of the book, with the notebook and the cell it belongs to."""
    for path in NOTEBOOKS:
        for cell in code_cells(json.loads(path.read_text("utf-8"))):
            for output in cell["outputs"]:
                yield path.stem, cell, output


def sees(*cells, words):
    return any(words in fault for fault in faults(made_up(*cells)))


@case("WG-1", PAGES)
def a_picture_does_not_depend_on_a_widget_manager():
    """A page takes the drawing: no state is stored, and no version of a manager must fit."""
    assert config()["sphinx"]["config"]["nb_ipywidgets_js"] == {}
    for name, _, output in outputs():
        kinds = output.get("data", {})
        assert not [kind for kind in kinds if "jupyter.widget" in kind], name
    for path in NOTEBOOKS:
        assert "widgets" not in json.loads(path.read_text("utf-8"))["metadata"]


@case("WG-3", PAGES)
def without_a_network_every_widget_is_a_picture_still():
    widgets = 0
    for name, _, output in outputs():
        html = text(output.get("data", {}).get("text/html", ""))
        if 'class="kv-live"' in html:
            widgets += 1
            assert "<svg" in html and "kv-error" not in html, name
            assert not re.search(r"""(?:src|href)=["']https?:""", html), name
    assert widgets > 40
    assert "http" not in built_book.extension("live_pages").policy(online=False)


@case("WG-4", PAGES)
def a_callback_that_raises_is_seen():
    """The error stands where the picture would; a notebook that stored one is refused."""

    def draw(size):
        if size == 2:
            raise ZeroDivisionError("no such size")
        return "<svg></svg>"

    slider = {"size": Slider([1, 2], 1, "size")}
    registry._DRAWINGS["broken"] = registry.Drawing("broken", draw, slider)
    try:
        widget = show.widget("broken")
        control, view = widget._live().children
        control.value = 2  # as observe, a click and interact would
        assert "ZeroDivisionError: no such size" in view.value
        stored = widget._repr_mimebundle_()["text/html"]
        assert (
            "ZeroDivisionError"
            in json.loads(live.answer("render", "broken", '{"size": 2}'))["error"]
        )
        with pytest.raises(ZeroDivisionError):
            _ = widget.svg
    finally:
        del registry._DRAWINGS["broken"]
    shown = code("show.widget('broken')", result({"text/html": stored, "text/plain": "broken()"}))
    assert sees(shown, words="stored the error of a drawing")
    for source in ("interact(f)", "import ipywidgets", "from ipywidgets import Output"):
        assert sees(code(source), words="makes widgets of its own")


@case("NV-1", PAGES)
def the_numbers_behind_a_picture_are_asserted():
    """Another picture in the place of a plot passes every comparison; its numbers do not."""
    swapped = code("show.line_plot(a, alt=b)", PLOT, mystnb=FIGURE)
    assert sees(swapped, code("y = 2"), words="nobody asserts the numbers")
    assert not sees(swapped, code("assert a"), words="nobody asserts the numbers")
    said = code("show.line_plot(a, alt=f'{a} tokens')", PLOT, mystnb=FIGURE)
    assert not sees(said, code("y = 2"), words="nobody asserts the numbers")


@case("NV-2", PAGES)
def an_error_that_is_shown_is_required():
    """The tag only allows an error: it is refused, and so is catching one and asserting nothing."""
    assert sees(code("f()", tags=["raises-exception"]), words="raises-exception")
    quiet = "try:\n    f()\nexcept ValueError:\n    pass"
    assert sees(code(quiet), words="passes whether it raises or not")
    said = "try:\n    f()\nexcept ValueError as error:\n    print(error)"
    assert not sees(code(said, stdout("no\n")), words="passes whether it raises or not")
    kept = "try:\n    f()\nexcept ValueError as error:\n    seen = str(error)\nassert seen"
    assert not sees(code(kept), words="passes whether it raises or not")


@case("NV-4", PAGES)
def nothing_is_stored_that_changes_from_run_to_run():
    for name, _, output in outputs():
        assert output.get("name") != "stderr", name
    for words, cell in (
        ("stored stderr", code("f()", stdout("w", "stderr"))),
        ("address of an object", code("print(f)", stdout("<f at 0x7fed64b4f6a0>\n"))),
        ("path of a machine", code("print(p)", stdout("/somewhere/deep/file.py\n"))),
    ):
        assert sees(cell, words=words)
    ignored = code("f()  # slow", stdout("w", "stderr"), tags=["nbval-ignore-output"])
    assert sees(ignored, words="stored stderr"), "a cell that is not compared may not warn either"


@case("NV-6", PAGES)
def a_semicolon_hides_nothing():
    for source in ("f(x);", "f(x);  # drawn", "f(x);\n# drawn\n", "f(x);\n\n", "x = 1\nx;"):
        assert sees(code(source), words="ends in a semicolon"), source
    for source in ("_ = f(x)", "x = 1; y = 2", "_ = ';'", "_ = 1  # a; b;", '_ = """\n;"""'):
        assert not sees(code(source), words="ends in a semicolon"), source


@case("BB-1", PAGES)
def a_cell_that_raises_fails_the_build():
    """Pages show stored outputs, so the run that stores them fails, and a stored error is refused.

    Whoever lets the build run notebooks gets an error from it too.
    """
    error = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
    assert sees(code("1 / 0", error), words="stored an error")
    assert config()["execute"]["execute_notebooks"] == "off"
    assert config()["sphinx"]["config"]["nb_execution_raise_on_error"] is True
    gates = (ROOT / "tools/check.py").read_text("utf-8")
    assert '"-W"' in gates and "-W" in (ROOT / "Makefile").read_text("utf-8")


@case("BB-3", PAGES)
def only_the_pages_of_the_contents_are_built_and_run():
    assert config()["only_build_toc_files"] is True
    assert {".venv", "_build"} <= set(config()["exclude_patterns"])
    found = {path.relative_to(ROOT).with_suffix("").as_posix() for path in NOTEBOOKS}
    assert found <= set(listed())


@case("BB-4", PAGES)
def a_slow_cell_has_its_time():
    """Longer than the forty seconds of the case, wherever a notebook may be run."""
    assert tool.CELL_TIMEOUT_S >= 600
    assert config()["execute"]["timeout"] >= 600


@case("EN-3", PAGES)
def there_is_one_form_of_a_chapter_and_its_outputs_are_in_it():
    """Nothing is kept in a second format, and no cache of executions can lose an output."""
    assert config()["execute"]["execute_notebooks"] == "off"
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text("utf-8"))
        assert "jupytext" not in notebook["metadata"], path.name
        assert any(cell["outputs"] for cell in code_cells(notebook)), path.name
    for page in listed():
        source = ROOT / f"{page}.md"
        if source.exists():
            assert "```{code-cell}" not in source.read_text("utf-8"), page
