"""Tests, notebooks and measurements on CUDA: python tools/gpu.py --records FOLDER.

Installs nothing. What needs a package or weights that this machine lacks is left out, with a line
that says so. Before `--minutes` are over it stops and exits with 75: the same command goes on where
it stopped. What is done is kept in FOLDER until all is, and is void when code or machine change.

Measurements come last: a new record may change what a page prints.

Exit code 0: nothing failed. 1: something did. 2: nothing ran, there is no CUDA. 75: run it again.
To try the tool itself out on a CPU, set KVLIB_DEVICE=cpu and name a folder of your own.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_parts import PARTS, RUNNERS, Outcome, jobs, last_line

ROOT = Path(__file__).resolve().parents[1]
WATCHED = (
    *("kvlib/**/*.py", "kvlib/data/*", "tests/*.py", "measure/*.py", "exercises/*.py"),
    *("tools/*.py", "chapters/*/*.ipynb", "pyproject.toml"),
)
AGAIN = 75


class OutOfTime(Exception):
    """The minutes of this call are over."""


class Run:
    """One call of the tool: where, on what, how long, and what earlier calls have done.

    Args:
        root: the repository.
        records: the folder for records and for what is done so far.
        device: `cpu`, `cuda` or `cuda:N`.
        key: code and machine; what was done under another key is forgotten.
        seconds: until this call must stop.
    """

    def __init__(self, root: Path, records: Path, device: str, key: str, seconds: float) -> None:
        self.root, self.records, self.seconds = root, records, seconds
        self._end = time.monotonic() + seconds
        self._file = records / ".gpu_run.state"  # not .json: those are records
        self._environment = os.environ | {
            "KVLIB_DEVICE": device,
            "HF_HUB_OFFLINE": "1",
            "MPLBACKEND": "Agg",
            "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.getenv("PYTHONPATH")])]),
        }
        self._environment.pop("KVLIB_RECORDS", None)
        self.state: dict[str, Any] = {"key": key, "done": {}}
        with contextlib.suppress(OSError, ValueError):
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            if kept["key"] == key:
                self.state = kept

    @property
    def done(self) -> dict[str, Outcome]:
        """Outcomes by job."""
        return self.state["done"]

    def left(self) -> float:
        """Seconds until this call must stop."""
        return self._end - time.monotonic()

    def keep(self) -> None:
        """Writes what is done, in one step."""
        self.records.mkdir(parents=True, exist_ok=True)
        half = self._file.with_suffix(".part")
        half.write_text(json.dumps(self.state, indent=1), encoding="utf-8")
        half.replace(self._file)

    def forget(self) -> None:
        """Deletes what is done: the next call starts afresh."""
        self._file.unlink(missing_ok=True)

    def child(self, command: list[str], folder: Path | None = None, **more: str) -> tuple[int, str]:
        """Runs a Python command; returns exit code and output.

        Raises:
            OutOfTime: it did not end in the time left; it and its children are dead.
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
            output, _ = process.communicate(timeout=max(self.left(), 0))
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
        """Returns the text without this machine's paths, cut to a line of a table."""
        for path, name in ((self.root, "."), (sys.executable, "python"), (Path.home(), "~")):
            text = text.replace(str(path), name)
        return text if len(text) <= 200 else f"{text[:199]}…"


def device_here() -> Any | None:
    """Returns the device to run on as torch has it, or None after saying why there is none."""
    asked = os.environ.get("KVLIB_DEVICE") or "cuda"
    try:
        import torch

        from kvlib.tensors.device import device

        return device(asked)
    except ImportError as error:
        print(f"nothing run: {sys.executable} has no {error.name}", file=sys.stderr)
    except (RuntimeError, ValueError):
        print(
            f"nothing run: torch {torch.__version__} sees no device {asked!r} on this machine. "
            "To try the tool out without CUDA: KVLIB_DEVICE=cpu and --records in another folder",
            file=sys.stderr,
        )
    return None


def fingerprint(root: Path, machine: str) -> str:
    """Returns one hash of commit, code and machine: what an outcome holds for."""
    commit = ""
    with contextlib.suppress(OSError):
        git = ["git", "-C", str(root), "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True).stdout
    digest = hashlib.sha256(f"{commit}\n{machine}\n{sys.version}\n".encode())
    for path in sorted(path for pattern in WATCHED for path in root.glob(pattern)):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def work(run: Run, todo: list[tuple[str, str]]) -> bool:
    """Runs what is not done yet; returns False when the time is up before everything is."""
    for part, name in todo:
        if name in run.done:
            continue
        whole = run.left() > 0.9 * run.seconds
        try:
            outcome = RUNNERS[part](run, name)
        except OutOfTime:
            if not whole:
                return False
            outcome = {"state": "failed", "note": f"not done in {run.seconds:.0f} s, alone"}
        run.done[name] = outcome
        run.keep()
        print(f"== {name}: {outcome['state']}, {outcome['note']}", flush=True)
    return True


def summary(run: Run) -> dict[str, Any]:
    """Returns the record's data: counts of tests, and a row for all that is not a passed test."""
    data: dict[str, Any] = {}
    for part in PARTS:
        done = {name: run.done[name] for name in jobs(run.root, part) if name in run.done}
        rows = [{"what": n, "state": o["state"], "note": o["note"]} for n, o in done.items()]
        if part == "tests" and done:
            counts = sum((Counter(outcome["counts"]) for outcome in done.values()), Counter())
            data["tests"] = dict(counts)
            data["files of tests"] = dict(Counter(outcome["state"] for outcome in done.values()))
            rows = [row for row in rows if row["state"] != "passed"]
            part = "files of tests that failed or did not run"
        if rows or not done:
            data[part] = rows or "not yet run"
    return data


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command line; the file's first lines say what the exit codes mean."""
    parser = argparse.ArgumentParser(description="tests, notebooks and measurements on CUDA")
    parser.add_argument("--records", type=Path, required=True, help="where records go")
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument("--minutes", type=float, default=8, help="stop before so many minutes")
    parser.add_argument("--fresh", action="store_true", help="forget what is done")
    options = parser.parse_args(arguments)
    end = 0.97 * 60 * options.minutes
    sys.path[:0] = [str(ROOT), str(ROOT / "measure")]
    if (device := device_here()) is None:
        return 2
    import record

    records = options.records.resolve()
    if device.type != "cuda" and records == record.FOLDER:
        print("nothing run: only CUDA writes there, name another folder", file=sys.stderr)
        return 2
    run = Run(root, records, str(device), fingerprint(root, record.machine(device)), end)
    if options.fresh:
        run.forget()
