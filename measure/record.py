"""Writes measurement records: the numbers with machine, versions, commit, date and command.

A record also names the code it measured, so that pages can mark it stale when that code changes.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import torch

from kvlib import files
from kvlib.measured import FOLDER

ROOT = Path(__file__).resolve().parents[1]


def command(script: Path, arguments: list[str]) -> str:
    """Returns the command that a record names, the same from wherever it was given.

    Raises:
        SystemExit: arguments for a measurement that looks at none: `--help`, say, would be answered
            with an hour of measuring.
    """
    script = script.resolve()
    if arguments and script.parent == ROOT / "measure":
        text = script.read_text(encoding="utf-8")
        if "sys.argv" not in text and "argparse" not in text:
            raise SystemExit(f"{script.name} takes no arguments, got {' '.join(arguments)}")
    named = script.relative_to(ROOT).as_posix() if script.is_relative_to(ROOT) else script.name
    return " ".join(["python", named, *arguments])


command(Path(sys.argv[0]), sys.argv[1:])  # refused before hours are spent, not after


def rounds(
    ways: dict[str, Callable[[], None]],
    repeats: int,
    *,
    warm_up: bool = True,
    before: Mapping[str, Callable[[], None]] = MappingProxyType({}),
) -> dict[str, list[float]]:
    """Times several ways of doing the same thing in turns, so that noise meets all of them alike.

    Args:
        ways: name to a call that does the work once. A card that is in use is waited for before
            either reading of the clock: a call returns as soon as its work is queued.
        repeats: rounds that are timed.
        warm_up: whether an untimed round comes first; without it the caller has warmed up.
        before: for some of the ways a call that is made before it, untimed: to put what it reads
            out of a processor's caches, say.

    Returns:
        For each way the seconds of every round, in order.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(-int(warm_up), repeats):
        for name, work in ways.items():
            if name in before:
                before[name]()
            wait()
            start = perf_counter()
            work()
            wait()
            end = perf_counter()
            if round_ >= 0:
                times[name].append(end - start)
    return times


def wait() -> None:
    """Waits until a card that is in use has done what it was asked to do."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def interleaved(ways: dict[str, Callable[[], None]], repeats: int) -> dict[str, dict[str, float]]:
    """Returns median and quartiles of each way's seconds; see `rounds`."""
    return {name: spread(seconds) for name, seconds in rounds(ways, repeats).items()}


def times_faster(slow: list[float], fast: list[float]) -> float:
    """Returns the median of the ratios round by round, to three digits.

    The ratio of two medians can pair a busy moment of one side with a quiet one of the other.

    Example:
        >>> times_faster([2.0, 20.0, 2.0], [1.0, 10.0, 1.0])
        2.0
    """
    ratios = (a / b for a, b in zip(slow, fast, strict=True))
    return float(f"{statistics.median(ratios):.3g}")


def spread(values: list[float]) -> dict[str, float]:
    """Returns median and quartiles, rounded to four digits."""
    low, median, high = statistics.quantiles(values, n=4)
    digits = {"median": median, "q1": low, "q3": high}
    return {name: float(f"{value:.4g}") for name, value in digits.items()}


def machine(device: torch.device) -> str:
    """Names the machine as a reader would compare it: processor or card, cores, memory."""
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        return f"{card.name}, {card.total_memory / 2**30:.0f} GiB"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{_processor()}, {torch.get_num_threads()} thread(s), {memory:.0f} GiB"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except OSError:  # no git on this machine
        return ""


def _folder() -> Path:
    return Path(os.environ.get("KVLIB_RECORDS") or FOLDER).resolve()


def for_the_book() -> bool:
    """Returns whether records go to the book, so that what its drawings keep is to change, too."""
    return _folder() == FOLDER.resolve()


def write(name: str, data: Any, code: Iterable[str], device: torch.device) -> Path:
    """Writes one record as `chapters/measured/<name>.<device>.json`, whole or not at all.

    Args:
        name: what was measured.
        data: the numbers, as JSON types.
        code: the files whose speed this is, relative to the repository.
        device: where it ran; its type ends the name.

    Raises:
        ValueError: a number is none, or infinite: JSON has neither.
        OSError: the disk is full, say. A record that was there before is there still.
    """
    full_name = f"{name}.{device.type}"
    commit = os.environ.get("KVLIB_COMMIT") or _commit()
    record = {
        "name": full_name,
        "date": datetime.date.today().isoformat(),
        "machine": machine(device),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "commit": commit or "not in a repository",
        "command": command(Path(sys.argv[0]), sys.argv[1:]),
        "code": {path: hashlib.sha256((ROOT / path).read_bytes()).hexdigest() for path in code},
        "data": data,
    }
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{full_name}.json"
    text = json.dumps(record, indent=1, allow_nan=False)
    # Numbers of one list stand on one line; a string of JSON holds no line break.
    text = re.sub(
        r"\[\n[-+\d.,eE\s]+\n\s*\]", lambda numbers: json.dumps(json.loads(numbers[0])), text
    )
    files.write(target, text + "\n")
    print(f"wrote {target.name}")
    return target
