"""Repair four faults in a bandwidth figure: cold runs, mean, GiB for GB, half a copy's bytes."""

from itertools import product
from statistics import mean, median

TASK = """
A copy of `num_bytes` bytes was timed several times; `times` holds the seconds of each run in order.
This function should return the memory bandwidth in GB/s, and has **four faults. Repair them.**

- the first `warm_up` runs were cold and do not count;
- the typical run decides, not the few that were interrupted: take the median time;
- a GB is 10⁹ bytes;
- a copy reads every byte and writes every byte, and both are traffic.
"""

STUB = """
def bandwidth_gb_s(times, num_bytes, warm_up):
    seconds = sum(times) / len(times)
    return num_bytes / 1024**3 / seconds
"""

SOLUTION = """
from statistics import median

def bandwidth_gb_s(times, num_bytes, warm_up):
    seconds = median(times[warm_up:])
    return 2 * num_bytes / 10**9 / seconds
"""

WRONG = (
    # Each fault alone, the other three repaired.
    SOLUTION.replace("times[warm_up:]", "times"),
    SOLUTION.replace("import median", "import mean as median"),
    SOLUTION.replace("10**9", "1024**3"),
    SOLUTION.replace("2 * num_bytes", "num_bytes"),
    # Sorts before it throws away, and so loses the fastest runs.
    SOLUTION.replace("times[warm_up:]", "sorted(times)[warm_up:]"),
    # Throws away one run, whatever was asked.
    SOLUTION.replace("times[warm_up:]", "times[1:]"),
    # Of an even number of runs, takes the upper one of the middle two.
    SOLUTION.replace("import median", "import median_high as median"),
    # MB/s.
    SOLUTION.replace("10**9", "10**6"),
    STUB,
)

CASES = (
    ([0.4, 0.1, 0.1], 10**9, 1),
    ([0.04, 0.01, 0.011, 0.01, 0.09, 0.01, 0.01, 0.011], 10**8, 1),
    ([0.9, 0.5, 0.2, 0.2, 0.8, 0.21, 0.2], 2**30, 2),
    ([0.3, 0.2, 0.5, 0.4], 3 * 10**9, 0),
)
FAULTS = (
    "counts the cold runs",
    "takes the mean",
    "divides by 2^30, which gives GiB/s",
    "counts the bytes one way only",
)


def _bandwidth(case, cold=False, average=False, binary=False, one_way=False):
    times, num_bytes, warm_up = case
    kept = times if cold else times[warm_up:]
    seconds = mean(kept) if average else median(kept)
    return (1 if one_way else 2) * num_bytes / (2**30 if binary else 10**9) / seconds


def _near(got, expected):
    return isinstance(got, (int, float)) and abs(got - expected) <= 1e-9 * expected


def _hint(case, got):
    """Names the faults that give exactly this answer, the fewest that do."""
    for present in sorted(product((False, True), repeat=4), key=sum):
        if any(present) and _near(got, _bandwidth(case, *present)):
            left = [fault for fault, there in zip(FAULTS, present, strict=True) if there]
            return f": it still {', '.join(left)}"
    return ""


def check(answer):
    for case in CASES:
        times, num_bytes, warm_up = case
        expected = _bandwidth(case)
        got = answer(list(times), num_bytes, warm_up)
        if not _near(got, expected):
            return (
                f"bandwidth_gb_s({times}, {num_bytes}, {warm_up}) should be {expected:.6g}, but "
                f"yours gave {got!r}{_hint(case, got)}."
            )
    return None
