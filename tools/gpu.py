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
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_jobs import PARTS, RUNNERS, OutOfTime, Run, jobs

ROOT = Path(__file__).resolve().parents[1]
WATCHED = (
    *("kvlib/**/*.py", "kvlib/data/*", "tests/*.py", "measure/*.py", "exercises/*.py"),
    *("tools/*.py", "chapters/*/*.ipynb", "pyproject.toml"),
)
WRITTEN = ("kvlib/data/kernel_variants.json",)  # by a measurement: what is done holds after it
AGAIN = 75


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
        if path.relative_to(root).as_posix() in WRITTEN:
            continue
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
            without = run.state.get("no_weights")
            data["tests of the real model"] = f"left out: {without}" if without else "included"
            data["files that did not pass"] = [row for row in rows if row["state"] != "passed"]
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
