"""Notes which tests `make quick` leaves out: those that take half a second and more.

    python -m pytest --durations=0 --durations-min=0.5 -m "not browser" | python tools/slow_tests.py

Writes `tests/slow.txt`, a line for each test function; of several cases the slowest counts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

LIST = Path(__file__).resolve().parents[1] / "tests" / "slow.txt"
TOOK = re.compile(r"^([\d.]+)s (?:call|setup|teardown)\s+(tests/\S+?::[\w:]+)")
LEAST_S = 0.5


def slow(lines: Iterable[str], least_s: float = LEAST_S) -> list[str]:
    """Returns the test functions that take so long, in order, from what pytest printed.

    >>> slow(["0.61s call     tests/test_a.py::test_b[3]", "0.20s setup  tests/test_a.py::test_c"])
    ['tests/test_a.py::test_b']
    """
    found = (TOOK.match(line) for line in lines)
    return sorted({each[2] for each in found if each and float(each[1]) >= least_s})


if __name__ == "__main__":
    if names := slow(sys.stdin):
        LIST.write_text("\n".join(names) + "\n", encoding="utf-8")
    print(f"{len(names)} slow tests" if names else "no durations in what was read; nothing written")
