"""The gates: all of them run, the first that fails stops the rest, and none fails unseen."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sphinx

ROOT = Path(__file__).resolve().parents[1]


def tool(name):
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check, same_pages = tool("check"), tool("same_pages")


def python(name, code):
    return name, [sys.executable, "-c", code]


GOOD, BAD = python("good", "print('fine')"), python("bad", "print('oh'); raise SystemExit(3)")


@pytest.mark.parametrize(
    "stage, code",
    [([GOOD], 0), ([GOOD, GOOD], 0), ([BAD, GOOD], 3), ([GOOD, BAD], 3), ([GOOD, BAD, GOOD], 3)],
)
def test_a_stage_fails_if_one_of_its_gates_does(stage, code, capfd):
    assert check.run(stage) == code
    said = capfd.readouterr().out
    for name, _ in stage:
        assert f"== {name}: " in said
    assert said.splitlines().count("fine") == stage.count(GOOD)
    assert said.splitlines().count("oh") == stage.count(BAD)


def test_gates_of_a_stage_run_side_by_side(tmp_path):
    """Each waits for the other's file: one after the other they would never end."""
    code = (
        "import sys, time; from pathlib import Path; mine, its = map(Path, {}); mine.touch()\n"
        "while not its.exists(): time.sleep(0.01)"
    )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert check.run([python("a", code.format([a, b])), python("b", code.format([b, a]))]) == 0


def test_a_stage_that_fails_is_the_last(monkeypatch, capfd):
    monkeypatch.setattr(check, "stages", lambda quick, seed: [[GOOD], [BAD], [python("c", "")]])
    assert check.main(quick=True) == 3
    assert "== c: " not in capfd.readouterr().out


def test_a_book_that_built_nothing_is_no_success(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert check.run([python("book", "")]) == 1
    assert "built nothing" in capfd.readouterr().out


def test_everything_is_checked():
    names = [name for stage in check.stages(False, "1") for name, _ in stage]
    wanted = ["style", "format", "book", "tests"]
    wanted += ["same pages", "texts", "notebooks", "pages"]
    assert names == wanted
    commands = {name: command for stage in check.stages(False, "1") for name, command in stage}
    found = {path.name for path in (ROOT / "tests").glob("test_*.py")}
    marked = {
        name for name in found if "mark.browser" in (ROOT / "tests" / name).read_text("utf-8")
    }
    pages = {Path(each).name for each in commands["pages"] if each.startswith("tests/")}
    assert pages == marked - {Path(__file__).name}
    assert len([each for each in commands["notebooks"] if each.endswith(".ipynb")]) > 50


@pytest.mark.parametrize("quick", [True, False])
def test_tests_run_in_an_order_that_is_drawn_and_cells_never_do(quick):
    for stage in check.stages(quick, "7"):
        for name, command in stage:
            drawn = "--random-order-seed=7" in command
            assert drawn == (name in ("tests", "pages")), name
            assert not (drawn and "--nbval" in command)


def folder(path, **files):
    for name, text in files.items():
        file = path / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def test_every_difference_of_two_builds_is_named(tmp_path):
    one = folder(tmp_path / "one", same="a", sub__other="built at noon", mine="x", longer="ab")
    other = folder(tmp_path / "other", same="a", sub__other="built at nine", its="x", longer="abc")
    found = same_pages.differences(one, other)
    assert found == [
        f"mine: only in {one}",
        f"its: only in {other}",
        "longer: differs at byte 2: 'ab' | 'abc'",
        "sub/other: differs at byte 10: 'built at noon' | 'built at nine'",
    ]
    assert same_pages.differences(one, one) == []


def test_without_a_built_book_nothing_is_compared(tmp_path, capsys):
    assert same_pages.main([str(tmp_path)]) == 1
    assert "no built book in" in capsys.readouterr().out


def test_a_second_build_that_fails_is_no_sameness(tmp_path, monkeypatch):
    monkeypatch.setattr(same_pages, "ROOT", folder(tmp_path / "source", a="1", _build__b="2"))
    monkeypatch.setattr(same_pages, "beyond_the_book", set)
    failing = folder(tmp_path, builder="#!/bin/sh\necho why not\nexit 2\n") / "builder"
    failing.chmod(0o755)
    monkeypatch.setattr(same_pages, "BOOK", str(failing))
    with pytest.raises(RuntimeError, match="ended with 2:\nwhy not"):
        same_pages.build(tmp_path / "copy")
    copied = [path.name for path in (tmp_path / "copy/book").iterdir()]
    assert copied == ["a"]


def test_the_second_build_finds_only_what_a_reader_of_the_book_installs(tmp_path):
    hidden = same_pages.beyond_the_book()
    assert {"torch", "numpy", "matplotlib", "ipywidgets", "pytest", "gguf"} < hidden
    assert hidden.isdisjoint({"kvlib", "sphinx", "jupyter_book", "myst_nb", "yaml"})
    tried = """
for name in ("torch", "numpy.linalg", "sphinx", "kvlib.sizes", "json"):
    try:
        __import__(name)
        print(name)
    except ModuleNotFoundError as error:
        assert error.name == name.partition(".")[0], error
import importlib.metadata
print(importlib.metadata.version("sphinx"))
"""
    said = subprocess.run(
        [sys.executable, "-c", tried],
        env={**os.environ, "PYTHONPATH": same_pages.book_packages(tmp_path / "packages")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert said == ["sphinx", "kvlib.sizes", "json", sphinx.__version__]


def test_a_test_that_the_inner_loop_leaves_out_is_still_there():
    listed = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").split()
    assert listed == sorted(set(listed)) and len(listed) > 50
    for each in listed:
        path, *_, name = each.split("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert name == "runTest" or f"def {name}(" in text, each
    assert "not slow" in check.stages(True, "1")[1][0][1][-1]
    whole = [word for stage in check.stages(False, "1") for _, command in stage for word in command]
    assert not [word for word in whole if "slow" in word]


def test_the_slowest_case_of_a_test_counts():
    said = [
        "2.00s call     tests/test_a.py::B::run",
        "0.49s call     tests/test_a.py::c[1]",
    ]
    said += ["0.50s setup    tests/test_a.py::c[2]", "==== 3 passed in 4.00s ===="]
    assert tool("slow_tests").slow(said) == [
        "tests/test_a.py::B::run",
        "tests/test_a.py::c",
    ]
