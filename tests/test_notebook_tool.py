"""The notebook tool changes nothing in a notebook nobody touched, and loses nothing on failure."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("notebook_tool", ROOT / "tools" / "notebooks.py")
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)

CLOCK = "import time\nprint('clock', time.time_ns())"
# The tool's kernel may not have the repository installed.
SEE_KVLIB = f"import sys\nsys.path.insert(0, {str(ROOT)!r})"


def unstable(source: str) -> Any:
    return new_code_cell(source, metadata={"tags": [tool.UNSTABLE], "collapsed": True})


def save(path: Path, *cells: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=list(cells), metadata={"widgets": {}}), path)
    return path


def outputs(path: Path) -> str:
    return str([cell.get("outputs") for cell in json.loads(path.read_text())["cells"]])


def test_a_second_run_changes_nothing_and_keeps_timings(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.ipynb",
        new_markdown_cell("# A"),
        new_code_cell(f"{SEE_KVLIB}\nimport os\nfrom kvlib import show"),
        unstable(CLOCK),
        new_code_cell("show.widget('decode_steps')"),
        new_code_cell("show.line_plot({'a': ([1], [1])}, x='x', y='y', alt='One point.')"),
        new_code_cell("print('a', flush=True)\nprint('b')\nprint(os.environ['KVLIB_DEVICE'])"),
    )
    assert tool.main([str(path)]) == 0
    once = path.read_text()
    assert tool.main([str(tmp_path)]) == 0
    assert path.read_text() == once
    assert tool.main(["--check", str(path)]) == 0
    assert tool.main(["--measure", str(path)]) == 0
    again = path.read_text()
    assert again != once
    clock = re.compile(r"clock \d+")
    assert clock.sub("", again) == clock.sub("", once)
    check_form(json.loads(once))


def check_form(notebook: dict) -> None:
    assert [cell["id"] for cell in notebook["cells"]] == [f"c{i:03d}" for i in range(6)]
    code = notebook["cells"][1:]
    assert [cell["execution_count"] for cell in code] == [1, 2, 3, 4, 5]
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert set(code[1]["metadata"]) == {"tags", "output_of"}
    assert set(code[2]["outputs"][0]["data"]) == {"text/html", "text/plain"}
    assert code[3]["metadata"]["mystnb"] == {"image": {"alt": "One point."}}
    assert [out["text"] for out in code[4]["outputs"]] == [["a\n", "b\n", "cpu\n"]]


def test_a_changed_cell_does_not_keep_its_old_timing(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ipynb", unstable(CLOCK))
    tool.main([str(path)])
    before = outputs(path)
    notebook = nbformat.read(path, 4)
    notebook.cells[0].source = CLOCK.replace("clock", "watch")
    nbformat.write(notebook, path)
    tool.main([str(path)])
    assert "clock" in before
    assert "watch" in outputs(path)


def test_check_shows_a_changed_output_and_stores_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "a.ipynb", new_code_cell("print(1 + 1)"))
    tool.main([str(path)])
    path.write_text(path.read_text().replace('"2\\n"', '"3\\n"'))
    before = path.read_text()
    assert tool.main(["--check", str(path)]) == 1
    assert path.read_text() == before
    printed = capsys.readouterr().out
    assert '-      "3\\n"' in printed
    assert '+      "2\\n"' in printed


def test_a_notebook_that_raises_is_reported_and_stays_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = save(tmp_path / "a.ipynb", new_code_cell("print(1)"), new_code_cell("1 / 0"))
    good = save(tmp_path / "b.ipynb", new_code_cell("print(1)"))
    before = bad.read_text()
    assert tool.main([str(tmp_path)]) == 1
    assert bad.read_text() == before
    assert "a.ipynb: ZeroDivisionError: division by zero" in capsys.readouterr().err
    assert "'1\\n'" in outputs(good)
    assert {path.name for path in tmp_path.iterdir()} == {"a.ipynb", "b.ipynb"}


KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"


def test_a_killed_kernel_a_slow_cell_and_a_damaged_file_are_named_and_the_rest_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "a.ipynb", new_code_cell("x = 1"), new_code_cell(KILLED))
    save(tmp_path / "b.ipynb", new_markdown_cell("#"), new_code_cell("while True:\n    pass"))
    (tmp_path / "c.ipynb").write_text('{"cells"')
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    good = save(tmp_path / "d.ipynb", new_code_cell("print(1)"))
    assert tool.main(["--seconds", "2", str(tmp_path)]) == 1
    assert {path: path.read_bytes() for path in before} == before
    assert "'1\\n'" in outputs(good)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n}.ipynb" for n in "abcd"]
    said = capsys.readouterr().err
    for words in (
        "a.ipynb: the kernel died in cell 1. Most often the system ended it because memory ran out",
        "b.ipynb: cell 1 took more than 2 s and was ended. On a slower machine give it longer",
        "c.ipynb: it is no notebook: ",
    ):
        assert words in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_leaves_the_old_notebook_and_says_what_to_do(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ipynb", new_code_cell("print(1)"))
    before = path.read_bytes()
    path.with_suffix(".part").symlink_to("/dev/full")
    with pytest.raises(tool.Unfinished, match=r"not stored \(.*No space left.*\): make room"):
        tool.write(path, "{}")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_kernel_the_reader_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(tool.KERNEL, "name", "none-such")
    path = save(tmp_path / "a.ipynb", new_code_cell("print(1)"))
    assert tool.main([str(path)]) == 1
    assert "no kernel started (No such kernel named none-such). Install" in capsys.readouterr().err


def test_a_folder_without_notebooks_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([str(tmp_path)]) == 1
    assert f"no notebook in {tmp_path}" in capsys.readouterr().err


def test_colours_paths_and_cuts_of_a_stream_are_evened_out() -> None:
    cell = new_code_cell("x", execution_count=1)
    cell.outputs = [
        new_output("stream", name="stdout", text=f"\x1b[31mred\x1b[0m {tool.ROOT}/a.py"),
        new_output("stream", name="stdout", text=" more"),
        new_output("stream", name="stderr", text="other"),
        new_output("display_data", data={tool.WIDGET_VIEW: {"model_id": "1"}, "text/plain": "w"}),
    ]
    done = tool.normalise(new_notebook(cells=[cell])).cells[0].outputs
    assert [out.get("text") for out in done] == ["red a.py more", "other", None]
    assert done[2].data == {"text/plain": "w"}


def test_only_pixels_may_differ_in_a_check(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text('{"image/png": "aaa", "text/plain": "1"}')
    assert not tool.difference(path, '{"image/png": "bbb", "text/plain": "1"}')
    assert tool.difference(path, '{"image/png": "aaa", "text/plain": "2"}')


def test_folders_are_searched_and_copies_of_jupyter_left_out(tmp_path: Path) -> None:
    wanted = save(tmp_path / "a.ipynb")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    save(tmp_path / ".ipynb_checkpoints" / "a-checkpoint.ipynb")
    assert tool.find([tmp_path, wanted]) == [wanted]


def test_what_an_environment_brings_is_not_run(tmp_path: Path) -> None:
    """A reader's environment may lie in the folder; its packages bring notebooks of their own."""
    wanted = save(tmp_path / "pages" / "a.ipynb")
    for folder in ("env", ".venv", "pages/.hidden"):
        save(tmp_path / folder / "lib" / "b.ipynb")
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert tool.find([tmp_path]) == [wanted]
    assert tool.find([tmp_path / "env" / "lib" / "b.ipynb"]), "asked for by name it is run"
