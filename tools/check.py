"""Runs every gate and stops at the first that fails: python tools/check.py [--quick].

Gates of one stage run side by side; the last of them speaks at once, the others when they are done.
Tests run in an order that is drawn anew each time and printed; `KVLIB_ORDER=<seed>` repeats one.
Cells of a notebook always run from first to last.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PY = sys.executable
BOOK = shutil.which("jupyter-book", path=str(Path(PY).parent)) or "jupyter-book"
PYTEST = [PY, "-m", "pytest", "-q"]
NOTEBOOKS = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("chapters/*/*.ipynb"))
PAGES = [f"tests/test_{name}.py" for name in ("pages", "live_page", "shut_in", "publishing")]
WORKERS = ["-n", "2", "--dist", "loadfile"]
# In a folder of its own: what Sphinx remembers for pages does not serve their texts.
TEXTS = [
    "--builder",
    "custom",
    "--custom-builder",
    "gettext",
    "--path-output",
    "_build/translation",
]
# A kernel that is killed answers nobody; without a limit of its own nbval waits half an hour.
CELLS = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=300"]

Gate = tuple[str, list[str]]


def stages(quick: bool, seed: str) -> list[list[Gate]]:
    """Returns what is to run, stage by stage."""
    order = ["--random-order", f"--random-order-seed={seed}"]
    style = [
        ("style", [PY, "-m", "ruff", "check", "."]),
        ("format", [PY, "-m", "ruff", "format", "--check", "."]),
    ]
    if quick:
        marks = "not model and not browser and not slow"
        return [style, [("tests", [*PYTEST, *WORKERS, *order, "-m", marks])]]
    return [
        style,
        [
            ("book", [BOOK, "build", ".", "-W", "-n", "--keep-going", "--quiet"]),
            ("tests", [*PYTEST, *WORKERS, *order, "-m", "not browser"]),
        ],
        [
            ("same pages", [PY, "tools/same_pages.py"]),
            ("texts", [BOOK, "build", ".", "-W", "--keep-going", "--quiet", *TEXTS]),
            ("notebooks", [*PYTEST, *WORKERS, *CELLS, *NOTEBOOKS]),
        ],
        [("pages", [*PYTEST, *WORKERS, *order, "-m", "browser", *PAGES])],
    ]


def environment() -> dict[str, str]:
    """One thread per worker, the CPU, and no way to a model hub: the same everywhere."""
    fixed = {"OMP_NUM_THREADS": "1", "KVLIB_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **fixed, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


class Running:
    """A gate that runs; what it says is kept if another has the screen."""

    def __init__(self, gate: Gate, *, aside: bool = False) -> None:
        self.name, command = gate
        print(f"== {self.name}: {' '.join(command[1:])}", flush=True)
        self._said = tempfile.TemporaryFile() if aside else None  # noqa: SIM115 (end closes it)
        self._start = time.monotonic()
        streams = {"stdout": self._said, "stderr": subprocess.STDOUT} if aside else {}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment(), **streams)

    def end(self) -> int:
        """Waits for it, prints what it said and how long it took, and returns its exit code."""
        code = self._process.wait()
        if self._said:
            self._said.seek(0)
            print(self._said.read().decode(errors="replace"), end="")
            self._said.close()
        if self.name == "book" and not code and not (ROOT / "_build/html/index.html").exists():
            print("== book: the command ended well but built nothing")
            code = 1
        seconds = time.monotonic() - self._start
        print(f"== {self.name}: {seconds:.0f} s, exit {code}", flush=True)
        return code


def run(stage: list[Gate]) -> int:
    """Runs the gates of a stage side by side; returns 0, or the exit code of one that failed."""
    *others, last = stage
    running = [*(Running(gate, aside=True) for gate in others), Running(last)]
    codes = [each.end() for each in reversed(running)]
    return next(filter(None, codes), 0)


def main(quick: bool) -> int:
    """Returns 0 when every gate passed, else a failing gate's exit code."""
    if not quick:
        shutil.rmtree(ROOT / "_build", ignore_errors=True)
    seed = os.environ.get("KVLIB_ORDER") or str(random.randrange(10**6))
    return next(filter(None, map(run, stages(quick, seed))), 0)


if __name__ == "__main__":
    sys.exit(main("--quick" in sys.argv[1:]))
