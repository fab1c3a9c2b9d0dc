"""What `make gpu` runs: files of tests, notebooks, measurements; and what this machine lacks.

Each of `RUNNERS` runs one job as a child of a `gpu.Run` and returns its outcome: a state (`passed`,
`failed`, `not run`) and a note. Nothing is left out without a printed line.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu import Run

PARTS = ("tests", "notebooks", "measure")
DOCTESTS = "kvlib"
# Single tests that cannot pass without what `make test` installs.
NEED_PINS = ("tests/test_house.py::test_the_environment_is_the_one_that_is_pinned",)
NEED_IPYWIDGETS = (
    "tests/test_widgets.py::test_the_output_carries_all_three_forms",
    "tests/test_widgets.py::test_moving_a_live_control_redraws_and_setting_moves_the_control",
    "tests/test_widgets.py::test_showing_twice_shows_the_same_controls",
    "tests/test_widgets.py::test_a_failing_drawing_shows_its_error_and_recovers",
)

Outcome = dict[str, Any]  # state, note, and for tests their counts


def jobs(root: Path, part: str) -> list[str]:
    """Returns what a part consists of, as paths."""
    if part == "notebooks":
        found = root.glob("chapters/*/*.ipynb")
    elif part == "measure":
        found = (path for path in root.glob("measure/*.py") if "__main__" in path.read_text())
    else:
        found = root.glob("tests/test_*.py")
    names = sorted(str(path.relative_to(root)) for path in found)
    return [DOCTESTS, *names] if part == "tests" and (root / DOCTESTS).is_dir() else names


def last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no output"])[-1]


def missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def needs(path: Path, root: Path) -> list[str]:
    """Returns the packages that we lack and that importing a file takes, our own modules' too."""
    found, waiting, seen = set(), [path], set()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        for module in imports(file):
            name, top = module.replace(".", "/"), module.split(".")[0]
            places = (root / f"{name}.py", root / name / "__init__.py", file.parent / f"{name}.py")
            own = [place for place in places if place.is_file()]
            waiting += [place for place in own if place not in seen]
            if not own and not (root / top).is_dir() and missing(top):
                found.add(top)
    return sorted(found)


def imports(path: Path) -> Iterator[str]:
    """The modules a file cannot do without: imports in functions and `try` are not among them."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def run_tests(run: Run, name: str) -> Outcome:
    """Runs one file of tests, or the examples in the library's docstrings."""
    lacks = ["pytest"] if missing("pytest") else []
    if name != DOCTESTS:
        lacks += needs(run.root / name, run.root)
    if lacks:
        return {"state": "not run", "note": f"needs {', '.join(lacks)}, not installed here"}
    command = ["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", name]
    code, output = run.child([*command, *left_out(run, name)])
    print(output)
    said = last_line(output)
    found = re.findall(r"(\d+) ([a-z]+)", said.split(" in ")[0])
    counts = {what.replace("errors", "error"): int(number) for number, what in found}
    state = {0: "passed", 5: "not run"}.get(code, "failed")
    return {"state": state, "note": run.tidy(said), "counts": counts}


def left_out(run: Run, name: str) -> list[str]:
    """Returns pytest's arguments that leave out what cannot run here, after a line for each."""
    marks, arguments = "not browser", []
    if why := run.no_weights():
        print(f"{name}: without tests marked `model`: {why}")
        marks += " and not model"
    for test in (*NEED_PINS, *(NEED_IPYWIDGETS if missing("ipywidgets") else ())):
        if test.startswith(f"{name}::"):
            print(f"{test}: left out, needs what `make test` installs")
            arguments += ["--deselect", test]
    for path in sorted((run.root / DOCTESTS).rglob("*.py")) if name == DOCTESTS else ():
        if lacks := needs(path, run.root):
            print(f"{path.relative_to(run.root)}: examples left out, needs {', '.join(lacks)}")
            arguments += ["--ignore", str(path)]
    return ["-m", marks, *arguments]


def run_notebook(run: Run, name: str) -> Outcome:
    """Runs one notebook under strict comparison."""
    script, path = Path(__file__).with_name("run_notebook.py"), run.root / name
    code, output = run.child([str(script), str(path)], path.parent)
    print(output)
    state = {0: "passed", 4: "not run"}.get(code, "failed")
    return {"state": state, "note": run.tidy(last_line(output).removeprefix(f"{state}: "))}


def run_measurement(run: Run, name: str) -> Outcome:
    """Runs one script that writes records; with random weights where it must and can."""
    source, arguments = (run.root / name).read_text(encoding="utf-8"), []
    if "load_model" in source and (why := run.no_weights()):
        if "--random" not in source:
            return {"state": "not run", "note": why}
        print(f"{name}: with random weights: {why}")
        arguments = ["--random"]
    code, output = run.child([name, *arguments], KVLIB_RECORDS=str(run.records))
    print(output)
    return {"state": "failed" if code else "passed", "note": run.tidy(last_line(output))}


RUNNERS = {"tests": run_tests, "notebooks": run_notebook, "measure": run_measurement}
