"""Fills the GPU columns of the pages that are still empty: python tools/columns.py.

`make lab` does so first, on a machine with CUDA; on any other it is silent. What has its record is
not measured again. Ctrl-C leaves the rest empty. To try it out on a CPU, set KVLIB_DEVICE=cpu and
let `--records` name a folder of your own.

Exit code 0, whatever is left empty: the notebooks open in any case.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from pathlib import Path

from gpu_jobs import OutOfTime, Run, run_measurement

ROOT = Path(__file__).resolve().parents[1]
SHOWN = re.compile(r'measured\.(?:columns\(\\"(\w+)\\"|load\(f?\\"(\w+)\.(?:cuda|\{))')
MINUTES = 30  # longer than any measurement; one that hangs does not keep the notebooks shut


def shown(root: Path) -> list[str]:
    """Returns the measurements that pages show of a card, in the order of the pages."""
    pages = (path.read_text(encoding="utf-8") for path in sorted(root.glob("chapters/*/*.ipynb")))
    found = (name for page in pages for names in SHOWN.findall(page) for name in names if name)
    return list(dict.fromkeys(found))


def empty(root: Path, records: Path, device: str) -> list[str]:
    """Returns those of which there is no record of this kind of device."""
    kind = device.partition(":")[0]
    return [name for name in shown(root) if not (records / f"{name}.{kind}.json").exists()]


def fill(root: Path, records: Path, device: str) -> None:
    """Runs the measurements that are missing, one line each."""
    if not (todo := empty(root, records, device)):
        return
    print(f"Pages show {len(todo)} measurements that have no record of {device}: made now.")
    print("Ctrl-C leaves the rest empty and opens the notebooks.", flush=True)
    for number, name in enumerate(todo, 1):
        print(f"{number} of {len(todo)}: {name}", end=" ", flush=True)
        run = Run(root, records, device, "", MINUTES, state=".columns.state")
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                outcome = run_measurement(run, f"measure/{name}.py")
        except OutOfTime:
            outcome = {"state": "failed", "note": f"takes more than {MINUTES} minutes"}
        finally:
            run.forget()
        good = outcome["state"] == "passed"
        print("measured" if good else f"left empty: {outcome['note']}", flush=True)


def device_to_fill() -> str | None:
    """Returns the device whose columns are asked for, or None where that is the processor."""
    import torch

    asked = os.environ.get("KVLIB_DEVICE")
    return asked or ("cuda" if torch.cuda.is_available() else None)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="fill the GPU columns that are empty")
    folder = root / "chapters" / "measured"
    parser.add_argument("--records", type=Path, default=folder, help="where records lie")
    records = parser.parse_args(arguments).records.resolve()
    device = device_to_fill()
    if device is None or (device == "cpu" and records == folder.resolve()):
        return 0
    try:
        fill(root, records, device)
    except KeyboardInterrupt:
        print("\nThe rest is left empty; the next make lab goes on with it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
