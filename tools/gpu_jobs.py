"""What `make gpu` runs, one child process a job: a file of tests, a notebook, a measurement.

Each of `RUNNERS` runs one job and returns its outcome: a state (`passed`, `failed`, `not run`) and
a note. Nothing is left out without a printed line.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
PARTS = ("tests", "notebooks", "measure")
DOCTESTS = "kvlib"
# Tests that would fail for want of a package without raising ImportError.
ELSEWHERE = {
    "tests/test_house.py::test_the_environment_is_the_one_that_is_pinned": "",
}
COUNTS = r"(\d+) (passed|failed|skipped|deselected|xfailed|xpassed|error)"

Outcome = dict[str, Any]  # state, note, and for tests their counts


class OutOfTime(Exception):
    """The minutes of this call are over."""


class Run:
    """One call of the tool: where, on what, until when, and what earlier calls have done.

    Args:
        root: the repository.
        records: the folder for records and for what is done so far.
        device: `cpu`, `cuda` or `cuda:N`.
        key: code and machine; what was done under another key is forgotten.
        minutes: how long this call may take, from now on.
        state: the file in `records` for what is done so far; not .json, those are records.
    """

    def __init__(
        self,
        root: Path,
        records: Path,
        device: str,
        key: str,
        minutes: float,
        state: str = ".gpu_run.state",
    ) -> None:
        self.root, self.records, self.minutes = root, records, minutes
        self._end = time.monotonic() + 60 * minutes
        self._file = records / state
        self._environment = os.environ | {
            "KVLIB_DEVICE": device,
            "HF_HUB_OFFLINE": "1",
            "MPLBACKEND": "Agg",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(root), str(TOOLS), os.getenv("PYTHONPATH")])
            ),
        }
        self._environment.pop("KVLIB_RECORDS", None)
        self.state: dict[str, Any] = {"key": key, "done": {}}
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            if kept["key"] == key and isinstance(kept["done"], dict):
                self.state = kept

    @property
    def done(self) -> dict[str, Outcome]:
        return self.state["done"]

    def minutes_left(self) -> float:
        return max(0.0, self._end - time.monotonic()) / 60

    def keep(self) -> None:
        """Writes what is done, in one step."""
        self.records.mkdir(parents=True, exist_ok=True)
        half = self._file.with_suffix(".part")
        try:
            half.write_text(json.dumps(self.state, indent=1), encoding="utf-8")
            half.replace(self._file)
        except BaseException:
            half.unlink(missing_ok=True)
            raise

    def forget(self) -> None:
        """Makes the next call start afresh."""
        self._file.unlink(missing_ok=True)

    def child(self, command: list[str], folder: Path | None = None, **more: str) -> tuple[int, str]:
        """Runs Python with these arguments; returns exit code and output.

        Raises:
            OutOfTime: it did not end in the time left. It and its children are dead.
        """
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder or self.root,
            env=self._environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )
        try:
            output, _ = process.communicate(timeout=60 * self.minutes_left())
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise OutOfTime if isinstance(error, subprocess.TimeoutExpired) else error from None
        return process.returncode, output

    def no_weights(self) -> str:
        """Returns why the real model cannot be loaded here, or an empty string; asks once."""
        if "no_weights" not in self.state:
            code, output = self.child(["-c", "import kvlib; kvlib.load_model(device='cpu')"])
            self.state["no_weights"] = self.tidy(last_line(output)) if code else ""
            self.keep()
        return self.state["no_weights"]

    def tidy(self, text: str) -> str:
        """Returns the text without this machine's paths, cut to fit a table."""
        for path, name in ((self.root, "."), (sys.executable, "python"), (Path.home(), "~")):
            text = text.replace(str(path), name)
        return text if len(text) <= 200 else f"{text[:199]}…"


def jobs(root: Path, part: str) -> list[str]:
    """Returns what a part consists of, as paths."""
    if part == "notebooks":
        found = root.glob("chapters/*/*.ipynb")
    elif part == "measure":
        found = (path for path in root.glob("measure/*.py") if of_the_device(path.read_text()))
    else:
        found = root.glob("tests/test_*.py")
    names = sorted(str(path.relative_to(root)) for path in found)
    return [DOCTESTS, *names] if part == "tests" and (root / DOCTESTS).is_dir() else names


def of_the_device(source: str) -> bool:
    """Returns whether a script measures the chosen device, and not the processor whatever it is.

    Those of traces, counts and the book itself would only replace the book's records by those of
    the processor beside the card.
    """
    chosen = "__main__" in source and re.search(r"\bdevice\(\)", source)
    return bool(chosen) and 'torch.device("cpu")' not in source


def last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no output"])[-1]


def missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def run_tests(run: Run, name: str) -> Outcome:
    """Runs one file of tests, or the examples in the library's docstrings."""
    if missing("pytest"):
        return {"state": "not run", "note": "needs pytest, which is not installed"}
    command = ["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "-p", "skip_missing"]
    code, output = run.child([*command, name, *left_out(run, name)])
    print(output)
    said = last_line(output)
    counts = {what: int(number) for number, what in re.findall(COUNTS, said)}
    state = {0: "passed", 5: "not run"}.get(code, "failed")
    return {"state": state, "note": run.tidy(said), "counts": counts}


def left_out(run: Run, name: str) -> list[str]:
    """Returns pytest's arguments that leave out what cannot run here, after a line for each."""
    marks, arguments = "not browser", []
    if why := run.no_weights():
        marks += " and not model"
        if name != DOCTESTS and "mark.model" in (run.root / name).read_text(encoding="utf-8"):
            print(f"{name}: tests marked `model` are left out: {why}")
    for test, package in ELSEWHERE.items():
        if test.startswith(f"{name}::") and (not package or missing(package)):
            print(f"{test}: left out, needs {package or 'the pinned packages'}")
            arguments += ["--deselect", test]
    return ["-m", marks, *arguments]


def run_notebook(run: Run, name: str) -> Outcome:
    """Runs one notebook under strict comparison."""
    script, path = TOOLS / "run_notebook.py", run.root / name
    code, output = run.child([str(script), str(path)], path.parent)
    print(output)
    state, _, note = last_line(output).partition(": ")
    if (state, code) not in (("passed", 0), ("not run", 4), ("failed", 1)):
        state, note = "failed", f"ended with exit code {code}: {last_line(output)}"
    return {"state": state, "note": run.tidy(note)}


def run_measurement(run: Run, name: str) -> Outcome:
    """Runs one script that writes records; with random weights where it must and can."""
    source, arguments = (run.root / name).read_text(encoding="utf-8"), []
    if ("load_model" in source or "cached_model" in source) and (why := run.no_weights()):
        if "--random" not in source:
            return {"state": "not run", "note": why}
        print(f"{name}: with random weights: {why}")
        arguments = ["--random"]
    code, output = run.child([name, *arguments], KVLIB_RECORDS=str(run.records))
    print(output)
    if code and re.match(
        r"(\w+\.)*(ModuleNotFoundError|UnsupportedTransformers): ", last_line(output)
    ):
        return {"state": "not run", "note": run.tidy(last_line(output))}
    return {"state": "failed" if code else "passed", "note": run.tidy(last_line(output))}


RUNNERS = {"tests": run_tests, "notebooks": run_notebook, "measure": run_measurement}
