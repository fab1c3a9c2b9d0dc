"""Prerequisite, Python: group and count."""

TASK = """
A log has one `(user, num_tokens)` entry for each request, in order of time. **Return a dictionary**
from each user to the list of their running totals: after the first request, after the second, and
so on. The log is not changed.
"""

STUB = """
def running_totals(log):
    ...
"""

SOLUTION = """
def running_totals(log):
    totals = {}
    for user, num_tokens in log:
        mine = totals.setdefault(user, [])
        mine.append(num_tokens + (mine[-1] if mine else 0))
    return totals
"""

WRONG = (
    # Collects, but does not add up.
    SOLUTION.replace(" + (mine[-1] if mine else 0)", ""),
    # One total for all users.
    SOLUTION.replace("totals.setdefault(user, [])", "totals.setdefault('a', [])"),
    STUB,
)

CASES = (
    ([], {}, "an empty log"),
    ([("a", 3), ("b", 5), ("a", 4)], {"a": [3, 7], "b": [5]}, "two users, interleaved"),
    ([("z", 1), ("z", 1), ("z", 1)], {"z": [1, 2, 3]}, "one user"),
)


def check(answer):
    for log, expected, why in CASES:
        got = answer(list(log))
        if got != expected:
            return f"running_totals({log}) should be {expected} ({why}), but yours gave {got!r}."
    return None
