"""The most tokens that running requests will hold at any time to come."""

TASK = """
Requests run side by side. Each holds some tokens and has some `left` to make, one in every step; it
leaves when it has made its last. **Return the most tokens that all of them together ever hold.**

- `requests` is a list of pairs `(held, left)`, every `left` at least 1;
- a request still holds its tokens in the step in which it makes its last one;
- they begin with what they hold now: step 0 counts too.
"""

STUB = """
def peak(requests):
    return sum(held for held, left in requests)
"""

SOLUTION = """
def peak(requests):
    most = 0
    for _, steps in requests:
        there = [held + steps for held, left in requests if left >= steps]
        most = max(most, sum(there))
    return most
"""

WRONG = (
    STUB,
    # Everybody at full length at once.
    SOLUTION.replace("held + steps", "held + left").replace("left >= steps", "True"),
    # Only the first end counts.
    """
def peak(requests):
    shortest = min(left for _, left in requests)
    return sum(held + shortest for held, _ in requests)
""",
    # The one that makes its last token is gone already.
    SOLUTION.replace("left >= steps", "left > steps"),
    # Forgets that the others grow meanwhile.
    SOLUTION.replace("held + steps", "held"),
    # Keeps the last end.
    SOLUTION.replace("max(most, sum(there))", "sum(there)"),
)

CASES = (
    [(10, 2), (4, 5)],
    [(1, 1)],
    [(3, 4), (3, 4)],
    [(100, 1), (1, 50), (1, 50), (1, 50)],
    [(5, 9), (50, 3), (2, 9), (7, 1)],
    [(40, 30), (40, 2), (1, 3)],
)


def _expected(requests):
    longest = max(left for _, left in requests)
    held = (
        sum(held + step for held, left in requests if left >= step) for step in range(longest + 1)
    )
    return max(held)


def check(answer):
    for case in CASES:
        got, expected = answer(list(case)), _expected(case)
        if got != expected:
            return f"peak({case}) should return {expected}, but yours gave {got!r}."
    return None
