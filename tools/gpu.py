"""Tests, notebooks and measurements on CUDA: python tools/gpu.py --records FOLDER.

Installs nothing. What needs a package or weights that this machine lacks is left out, with a line
that says so. Before `--minutes` are over it stops with exit code 75, and the same command goes on
from there. What is done is kept in FOLDER until all is, and is void when code or machine change.
Measurements come last: a new record may change what a notebook prints.

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
    """One call of the tool: where, on what, until when, and what earlier calls have done.

    Args:
        root: the repository.
        records: the folder for records and for what is done so far.
        device: `cpu`, `cuda` or `cuda:N`.
        key: code and machine; what was done under another key is forgotten.
        minutes: how long this call may take, from now on.
    """

    def __init__(self, root: Path, records: Path, device: str, key: str, minutes: float) -> None:
        self.root, self.records, self.minutes = root, records, minutes
        self._end = time.monotonic() + 60 * minutes
        self._file = records / ".gpu_run.state"  # not .json: those are records
        self._environment = os.environ | {
            "KVLIB_DEVICE": device,
            "HF_HUB_OFFLINE": "1",
            "MPLBACKEND": "Agg",
            "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.getenv("PYTHONPATH")])]),
        }
        self._environment.pop("KVLIB_RECORDS", None)
        self.state: dict[str, Any] = {"key": key, "done": {}}
        with contextlib.suppress(OSError, ValueError, KeyError):
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            self.state = kept if kept["key"] == key else self.state

    @property
    def done(self) -> dict[str, Outcome]:
        return self.state["done"]

    def minutes_left(self) -> float:
        return max(0.0, self._end - time.monotonic()) / 60

    def keep(self) -> None:
        """Writes what is done, in one step."""
        self.records.mkdir(parents=True, exist_ok=True)
        half = self._file.with_suffix(".part")
        half.write_text(json.dumps(self.state, indent=1), encoding="utf-8")
        half.replace(self._file)

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


def device_here() -> Any | None:
    """Returns the torch device to run on, or None after saying why there is none."""
    asked = os.environ.get("KVLIB_DEVICE") or "cuda"
    try:
        import torch

        from kvlib.tensors.device import device

        return device(asked)
    except ImportError as error:
        print(f"nothing run: {sys.executable} has no {error.name}")
    except (RuntimeError, ValueError):
        print(
            f"nothing run: torch {torch.__version__} sees no {asked} on this machine. To try the "
            "tool out without CUDA, set KVLIB_DEVICE=cpu and let --records name another folder"
        )
    return None


def fingerprint(root: Path, machine: str) -> str:
    """Returns one hash of commit, code and machine: what an outcome holds for."""
    commit = ""
    with contextlib.suppress(OSError):  # no git
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
        alone = run.minutes_left() > 0.9 * run.minutes
        try:
            outcome = RUNNERS[part](run, name)
        except OutOfTime:
            if not alone:
                return False
            outcome = {"state": "failed", "note": f"takes more than {run.minutes:.1f} minutes"}
        run.done[name] = outcome
        run.keep()
        print(f"== {name}: {outcome['state']}: {outcome['note']}", flush=True)
    return True


def summary(run: Run) -> dict[str, Any]:
    """Returns the record's data: counts of tests, and a row for all but files whose tests pass."""
    data: dict[str, Any] = {}
    for part in PARTS:
        done = {name: run.done[name] for name in jobs(run.root, part) if name in run.done}
        rows = [{"what": n, "state": o["state"], "note": o["note"]} for n, o in done.items()]
        if part == "tests" and done:
            counts = [Counter(outcome.get("counts", {})) for outcome in done.values()]
            data["tests"] = dict(sum(counts, Counter()))
            data["left out"] = run.state.get("no_weights", "") or "nothing for want of weights"
            data["files not passed"] = [row for row in rows if row["state"] != "passed"]
        else:
            data[part] = rows or "not yet run"
    return data


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command line; the top of this file says what the exit codes mean."""
    parser = argparse.ArgumentParser(description="tests, notebooks and measurements on CUDA")
    parser.add_argument("--records", type=Path, required=True, help="where records go")
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument("--minutes", type=float, default=8, help="stop before so many minutes")
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT), str(ROOT / "measure")]
    if (device := device_here()) is None:
        return 2
    import record

    records = options.records.resolve()
    if device.type != "cuda" and records == record.FOLDER:
        print("nothing run: what runs on no GPU must not replace the book's records")
        return 2
    key = fingerprint(root, record.machine(device))
    run = Run(root, records, str(device), key, 0.95 * options.minutes)
    todo = [(p, name) for p in PARTS if options.part in (None, p) for name in jobs(root, p)]
    if not work(run, todo):
        done = sum(name in run.done for _, name in todo)
        print(f"time is up, {done} of {len(todo)} done: run the same command to go on")
        return AGAIN
    os.environ["KVLIB_RECORDS"] = str(records)
    sys.argv[:] = ["tools/gpu.py"]  # the record's command, without a folder of this machine
    code = sorted(str(path.relative_to(root)) for path in root.glob("kvlib/**/*.py"))
    record.write("gpu_run", summary(run), code, device)
    if all(name in run.done for part in PARTS for name in jobs(root, part)):
        run.forget()
    states = Counter(run.done[name]["state"] for _, name in todo)
    print(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    return 1 if states["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
