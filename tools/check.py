"""Runs every gate in order and stops at the first that fails: python tools/check.py [--quick]."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PY = sys.executable
BOOK = shutil.which("jupyter-book", path=str(Path(PY).parent)) or "jupyter-book"
PYTEST = [PY, "-m", "pytest", "-q"]
NOTEBOOKS = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("chapters/*/*.ipynb"))
WORKERS = ["-n", "2", "--dist", "loadfile"]

STYLE = [
    ("style", [PY, "-m", "ruff", "check", "."]),
    ("format", [PY, "-m", "ruff", "format", "--check", "."]),
]
QUICK = [*STYLE, ("tests", [*PYTEST, *WORKERS, "-m", "not model and not browser"])]
FULL = [
    *STYLE,
    ("tests", [*PYTEST, *WORKERS, "-m", "not browser"]),
    ("notebooks", [*PYTEST, *WORKERS, "--nbval", "--nbval-current-env", *NOTEBOOKS]),
    ("book", [BOOK, "build", ".", "-W", "-n", "--keep-going", "--quiet"]),
    ("pages", [*PYTEST, "-m", "browser", "tests"]),
]


def environment() -> dict[str, str]:
    """One thread per worker, the CPU, and no way to a model hub: the same everywhere."""
    fixed = {"OMP_NUM_THREADS": "1", "KVLIB_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **fixed, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def main(quick: bool) -> int:
    """Returns 0 when every gate passed, else the failing gate's exit code."""
    if not quick:
        shutil.rmtree(ROOT / "_build", ignore_errors=True)
    for name, command in QUICK if quick else FULL:
        print(f"== {name}: {' '.join(command[1:])}", flush=True)
        start = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, env=environment()).returncode
        print(f"== {name}: {time.monotonic() - start:.0f} s, exit {code}", flush=True)
        if code:
            return code
        if name == "book" and not (ROOT / "_build/html/index.html").exists():
            print("== book: the command ended well but built nothing", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--quick" in sys.argv[1:]))
