"""Measures how fast a log is read, and how much memory that takes however long it is.

python -m measure.log_reading
"""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator
from itertools import cycle, islice

import torch

import kvlib
from kvlib.log_timeline import read
from record import ROOT, rounds, spread, write

LENGTHS = (1000, 10_000, 100_000)
TIMED, REPEATS = 20_000, 9
USED = re.compile(r"GPU KV cache usage: ([\d.]+)%")


def lines(num_lines: int) -> Iterator[str]:
    """Yields lines of the quiet sample log again and again, access lines between them."""
    stored = json.loads((ROOT / "kvlib/data/engine_logs.json").read_text(encoding="utf-8"))
    load = [line for line in stored["logs"]["quiet"]["lines"] if "Engine 000: " in line]
    access = ['INFO:     127.0.0.1:32978 - "POST /v1/chat/completions HTTP/1.1" 200 OK'] * 9
    return islice(cycle(access + load[:1]), num_lines)


def keep_all(num_lines: int) -> int:
    """Reads a log as one first does: all lines into a list."""
    kept = [f"{line}\n" for line in lines(num_lines)]
    return len([float(m[1]) for line in kept if (m := USED.search(line))])


def peak_bytes(num_lines: int, way: str) -> int:
    """Returns the most memory that was in use while a log was read."""
    tracemalloc.start()
    if way == "read":
        read(lines(num_lines), most=256)
    else:
        keep_all(num_lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    """Writes the record `log_reading.cpu`, where the CPU is what is measured."""
    if kvlib.device().type != "cpu":
        print("a log is read on the processor: not measured beside a GPU")
        return
    torch.set_num_threads(1)
    ways = {"read": lambda: read(lines(TIMED)), "keep_all": lambda: keep_all(TIMED)}
    times = {way: [s / TIMED for s in seconds] for way, seconds in rounds(ways, REPEATS).items()}
    data = {
        "line_s": {way: spread(seconds) for way, seconds in times.items()},
        "peak_bytes": [
            {"num_lines": n} | {way: peak_bytes(n, way) for way in ways} for n in LENGTHS
        ],
    }
    code = (
        *("kvlib/log_values.py", "kvlib/engine_logs.py"),
        *("kvlib/load_samples.py", "kvlib/log_timeline.py", "measure/log_reading.py"),
    )
    write("log_reading", data, code, torch.device("cpu"))


if __name__ == "__main__":
    main()
