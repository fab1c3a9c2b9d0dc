"""`make gpu` goes on where it stopped and leaves nothing out unsaid: tried on the CPU, made up."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from test_run_notebook import ROOT, Cell, code, notebook, shown, stdout

TOOLS = str(ROOT / "tools")
sys.path.insert(0, TOOLS)
gpu, gpu_jobs, columns = map(importlib.import_module, ("gpu", "gpu_jobs", "columns"))
sys.path.remove(TOOLS)
COLUMNS = ROOT / "kvlib" / "data" / "columns.json"

Tool = Callable[..., int]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Calls the tool on `tmp_path/repo` with records in `tmp_path/records`, no model at hand."""
    monkeypatch.setenv("KVLIB_DEVICE", "cpu")
    monkeypatch.setenv("KVLIB_RECORDS", "unset")  # the tool sets it; this puts it back
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a second for each pytest

    def no_weights(run: Any) -> str:
        return run.state.setdefault("no_weights", "no network")

    monkeypatch.setattr(gpu_jobs.Run, "no_weights", no_weights)
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
    notebook(folder / "a.ipynb", log("a"), code("import time\ntime.sleep(1)\n1", shown(plain="1")))
    notebook(folder / "b.ipynb", log("b"), code(f"{wait}    time.sleep(600)\n1", shown(plain="1")))
    return folder


def test_after_an_interruption_it_goes_on_where_it_stopped(
    tmp_path: Path, tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = two_notebooks(tmp_path)
    assert tool("--minutes", "0.1") == 75
    assert "time is up, 1 of 2 done: run the same command to go on" in capsys.readouterr().out
    assert not list((tmp_path / "records").glob("*.json"))
    assert tool() == 0
    assert (folder / "log").read_text() == "abb"
    states = {row["what"]: row["state"] for row in record(tmp_path)["data"]["notebooks"]}
    assert states == {"chapters/01/a.ipynb": "passed", "chapters/01/b.ipynb": "passed"}
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["gpu_run.cpu.json"]


def test_what_was_done_holds_for_the_same_code_and_machine_only(tmp_path: Path) -> None:
    two_notebooks(tmp_path)
    repo = tmp_path / "repo"
    key = gpu.fingerprint(repo, "a card")
    run = gpu_jobs.Run(repo, tmp_path, "cpu", key, minutes=1)
    run.done["a"] = {"state": "passed", "note": ""}
    run.keep()
    assert gpu.fingerprint(repo, "a card") == key
    assert gpu_jobs.Run(repo, tmp_path, "cpu", key, minutes=1).done == run.done
    (repo / "measure").mkdir()
    script = repo / "measure/new.py"
    script.touch()
    keys = [key, gpu.fingerprint(repo, "a card"), gpu.fingerprint(repo, "another card")]
    script.write_text("changed")
    keys.append(gpu.fingerprint(repo, "a card"))
    assert len(set(keys)) == 4
    kept = repo / gpu.WRITTEN[0]
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert gpu.fingerprint(repo, "a card") == keys[-1]  # a measurement of the same run wrote it
    for other in keys[1:]:
        assert gpu_jobs.Run(repo, tmp_path, "cpu", other, minutes=1).done == {}


def test_a_job_longer_than_a_whole_call_fails_instead_of_coming_back(
    tmp_path: Path, tool: Tool
) -> None:
    notebook(
        tmp_path / "repo/chapters/01/a.ipynb",
        code("import time\nprint(1, flush=True)\ntime.sleep(600)", stdout("1\n")),
    )
    assert tool("--minutes", "0.02") == 1
    assert "takes more than 0.0 minutes" in str(record(tmp_path)["data"])


def test_a_notebook_whose_process_dies_fails(tmp_path: Path, tool: Tool) -> None:
    path = tmp_path / "repo/chapters/01/a.ipynb"
    notebook(path, code("import os\nos._exit(0)", stdout("passed: 1\n")))
    assert tool() == 1
    assert "ended with exit code 0: no output" in str(record(tmp_path)["data"])


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
        "import pytest\n@pytest.mark.model\ndef test_model(): pass\n"
        "def test_fails(): assert False\n"
    )
    (tmp_path / "repo/pytest.ini").write_text("[pytest]\naddopts = -ra\nmarkers = model: x\n")
    assert tool("--part", "tests") == 1
    data = record(tmp_path)["data"]
    assert data["tests"] == {"passed": 2, "skipped": 2, "failed": 1, "error": 1, "deselected": 1}
    assert data["tests of the real model"] == "left out: no network"
    assert data["notebooks"] == data["measure"] == "not yet run"
    states = [(row["what"], row["state"]) for row in data["files that did not pass"]]
    assert states == [
        ("tests/test_b.py", "not run"),
        ("tests/test_c.py", "failed"),
        ("tests/test_d.py", "failed"),
    ]
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
        "    # measures kvlib.device()\n"
    )
    (folder / "a.py").write_text(f"{script}    # load_model, or --random\n")
    (folder / "b.py").write_text(f"{script}    # load_model\n")
    (folder / "c.py").write_text(script)
    (folder / "record.py").write_text("raise SystemExit(1)  # device()")  # no script of its own
    (folder / "trace.py").write_text(script.replace("kvlib.device()", "a trace"))
    (folder / "d.py").write_text(f'{script}    # writes a record of torch.device("cpu")\n')
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
    fails = (
        "import sys\nif __name__ == '__main__':  # on device()\n"
        "    sys.exit(f'{sys.executable} {__file__}')\n"
    )
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


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "3", '{"key": "k"}', '{"key": "k", "done": []}', "[" * 100_000, "\x00\xff"],
    ids=range(8),
)
def test_a_damaged_note_of_what_is_done_means_to_start_afresh(tmp_path: Path, text: str) -> None:
    (tmp_path / ".gpu_run.state").write_bytes(text.encode("latin-1"))
    run = gpu_jobs.Run(ROOT, tmp_path, "cpu", "k", 1.0)
    assert run.done == {}
    run.done["job"] = {"state": "passed", "note": ""}
    run.keep()
    assert gpu_jobs.Run(ROOT, tmp_path, "cpu", "k", 1.0).done == run.done
    assert [path.name for path in tmp_path.iterdir()] == [".gpu_run.state"]


def test_a_full_disk_keeps_the_note_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = gpu_jobs.Run(ROOT, tmp_path, "cpu", "k", 1.0)
    run.keep()

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    run.done["job"] = {"state": "passed", "note": ""}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            run.keep()
    assert gpu_jobs.Run(ROOT, tmp_path, "cpu", "k", 1.0).done == {}
    assert [path.name for path in tmp_path.iterdir()] == [".gpu_run.state"]


def test_a_card_is_measured_by_the_scripts_of_its_records_and_by_no_other() -> None:
    names = {Path(name).stem for name in gpu_jobs.jobs(ROOT, "measure")}
    assert names >= set(columns.shown(ROOT)) >= set(json.loads(COLUMNS.read_text()))
    assert not any(name.startswith("trace_") for name in names)
    assert names.isdisjoint({"mutants", "book_build", "live_page", "operations", "sharded_speed"})


def page(root: Path, *lines: str) -> None:
    (root / "chapters/01").mkdir(parents=True)
    notebook(root / "chapters/01/a.ipynb", *(code(line) for line in lines))


@pytest.fixture
def filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Fills the columns of a page with the measurements `a`, `b`, `c`; `b` fails."""
    page(
        tmp_path,
        'measured.columns("a")',
        'measured.load(f"b.{device}")',
        'measured.load("c.cuda"), measured.load("never.cpu")',
    )
    script = (
        "import os, pathlib\nprint('work')\n"
        "pathlib.Path(os.environ['KVLIB_RECORDS'], '{}.cpu.json').touch()\n"
    )
    (tmp_path / "measure").mkdir()
    for name in "ac":
        (tmp_path / f"measure/{name}.py").write_text(script.format(name))
    (tmp_path / "measure/b.py").write_text("raise SystemExit('no room')")
    (tmp_path / "records").mkdir()
    monkeypatch.setenv("KVLIB_DEVICE", "cpu")

    def call(records: str = "records") -> int:
        return columns.main(["--records", str(tmp_path / records)], tmp_path)

    return call


def test_what_pages_show_of_a_card_is_measured_once_and_a_failure_is_named(
    filling: Tool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert filling() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Pages show 3 measurements that have no record of cpu")
    assert lines[2:] == [
        "1 of 3: a measured",
        "2 of 3: b left empty: no room",
        "3 of 3: c measured",
    ]
    found = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert found == ["a.cpu.json", "c.cpu.json"]
    assert filling() == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["1 of 1: b left empty: no room"]
    (tmp_path / "records/b.cpu.json").touch()
    assert filling() == 0 and not capsys.readouterr().out


def test_an_interrupt_leaves_the_rest_empty_and_opens_the_notebooks(
    filling: Tool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(run: Any, name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(columns, "run_measurement", interrupted)
    assert filling() == 0
    assert "The rest is left empty" in capsys.readouterr().out
    assert not list((tmp_path / "records").iterdir())


def test_a_measurement_that_hangs_does_not_keep_the_notebooks_shut(
    filling: Tool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(run: Any, name: str) -> None:
        raise gpu_jobs.OutOfTime

    monkeypatch.setattr(columns, "run_measurement", late)
    assert filling() == 0
    assert capsys.readouterr().out.count("left empty: takes more than 30 minutes") == 3


def test_without_a_card_the_columns_are_left_without_a_word(
    filling: Tool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert filling("chapters/measured") == 0  # the CPU must not fill the book's
    monkeypatch.delenv("KVLIB_DEVICE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert filling() == 0
    assert not capsys.readouterr().out
