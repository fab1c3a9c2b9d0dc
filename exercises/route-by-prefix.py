"""A router that goes to where the prefix lies, unless it is too busy there."""

TASK = """
For each of several instances you are told how many tokens of a request's prompt it has `cached`,
and how many tokens of `load` it holds. **Return the index of the instance to take.**

- Take the one with the most cached tokens; among equals the one with the least load, and among
  those the lowest index.
- But if its load is **more than** `cap` times the mean load, take the least loaded of all, of
  several the one with the lowest index.
"""

STUB = """
def choose(cached, loads, cap):
    return cached.index(max(cached))
"""

SOLUTION = """
def choose(cached, loads, cap):
    best = min(range(len(loads)), key=lambda i: (-cached[i], loads[i]))
    if loads[best] > cap * sum(loads) / len(loads):
        return loads.index(min(loads))
    return best
"""

WRONG = (
    STUB,
    # Ignores the cap.
    SOLUTION.replace("loads[best] > cap * sum(loads) / len(loads)", "False"),
    # Sends those at the cap away too.
    SOLUTION.replace("loads[best] >", "loads[best] >="),
    # Compares with the sum.
    SOLUTION.replace(" / len(loads)", ""),
    # Among equals takes the first, however busy.
    SOLUTION.replace("(-cached[i], loads[i])", "-cached[i]"),
    # Goes by load alone.
    SOLUTION.replace("(-cached[i], loads[i])", "loads[i]"),
    # Takes the next best prefix instead of the least loaded.
    SOLUTION.replace(
        "loads.index(min(loads))", "sorted(range(len(loads)), key=lambda i: -cached[i])[1]"
    ),
)

CASES = (
    ([0, 32, 16], [10, 50, 40], 2.0),
    ([0, 32, 16], [10, 100, 40], 1.9),
    ([0, 32, 16], [10, 100, 40], 2.0),
    ([0, 0, 0], [7, 3, 3], 1.5),
    ([16, 16, 0], [30, 20, 10], 1.5),
    ([64, 0, 48], [90, 0, 30], 1.5),
    ([0, 48, 0, 0], [4, 4, 4, 4], 1.0),
    ([8, 0], [0, 0], 1.0),
)


def _expected(cached, loads, cap):
    _, load, best = min(
        (-c, load, i) for i, (c, load) in enumerate(zip(cached, loads, strict=True))
    )
    if load * len(loads) <= cap * sum(loads):
        return best
    return min(range(len(loads)), key=loads.__getitem__)


def check(answer):
    for cached, loads, cap in CASES:
        got, expected = answer(list(cached), list(loads), cap), _expected(cached, loads, cap)
        if got != expected:
            return f"choose({cached}, {loads}, {cap}) should return {expected}, yours gave {got!r}."
    return None
