"""How many times the load one server carries, at the same latency as another."""

TASK = """
Two servers were measured at several rates. Each measurement is a pair `(rate, latency)`,
in no particular order. A server *keeps* a latency up to the highest rate at which, **and at every
lower measured rate**, it was at most that.

**Return how many times the rate of `b` server `a` keeps at the latency `most`**, rounded to two
digits; `None` if one of them does not keep it at any measured rate.
"""

STUB = """
def advantage(a, b, most):
    ...
"""

SOLUTION = """
def advantage(a, b, most):
    def kept(curve):
        highest = None
        for rate, latency in sorted(curve):
            if latency > most:
                break
            highest = rate
        return highest

    rate_a, rate_b = kept(a), kept(b)
    if rate_a is None or rate_b is None:
        return None
    return round(rate_a / rate_b, 2)
"""

WRONG = (
    STUB,
    # The highest rate at which it was kept, whatever happened below.
    SOLUTION.replace("                break\n", "                continue\n"),
    # In the order of the measurements.
    SOLUTION.replace("sorted(curve)", "curve"),
    # Kept means strictly below.
    SOLUTION.replace("latency > most", "latency >= most"),
    # The first rate at which it breaks.
    SOLUTION.replace(
        "            if latency > most:\n                break\n            highest = rate\n",
        "            highest = rate\n            if latency > most:\n                break\n",
    ),
    # The other way round.
    SOLUTION.replace("rate_a / rate_b", "rate_b / rate_a"),
    # The ratio of latencies at the lowest rate.
    "def advantage(a, b, most):\n    return round(min(b)[1] / min(a)[1], 2)\n",
    # The ratio of the highest rates measured.
    "def advantage(a, b, most):\n    return round(max(a)[0] / max(b)[0], 2)\n",
)

A = [(1, 0.1), (2, 0.1), (4, 0.2), (6, 0.5), (8, 2.0)]
B = [(1, 0.1), (2, 0.4), (3, 1.5), (4, 3.0)]
CASES = (
    (A, B, 0.2, 4.0, "4 against 1"),
    (A, B, 0.5, 3.0, "6 against 2"),
    (A, B, 2.0, 2.67, "8 against 3"),
    (A, B, 0.05, None, "neither keeps it"),
    (A, [(1, 0.3), (2, 0.9)], 0.2, None, "one does not keep it"),
    ([(3, 0.3), (1, 0.1), (2, 0.9)], [(1, 0.1)], 0.5, 1.0, "broken at 2, kept at 3 by chance"),
    ([(8, 2.0), (2, 0.1), (4, 0.2)], [(2, 0.4), (1, 0.1)], 0.4, 2.0, "not in order"),
)


def check(answer):
    for a, b, most, expected, why in CASES:
        got = answer(list(a), list(b), most)
        if got != expected:
            return (
                f"advantage({a}, {b}, {most}) should be {expected} ({why}), but yours gave {got!r}."
            )
    return None
