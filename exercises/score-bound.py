"""How far off can an attention score be when keys are read back within half a step?"""

TASK = """
A key is read back at most `half_steps[d]` off in channel `d`, either way. **Return how far off the
score of the query with it can be**: a score is the sum of `query[d] * key[d]`, divided by the
square root of the number of channels. The bound must always hold, and some key must reach it.
"""

STUB = """
from math import sqrt


def score_bound(query, half_steps):
    return sum(q * h for q, h in zip(query, half_steps)) / sqrt(len(query))
"""

SOLUTION = """
from math import sqrt


def score_bound(query, half_steps):
    return sum(abs(q) * h for q, h in zip(query, half_steps)) / sqrt(len(query))
"""

WRONG = (
    STUB,
    # Errors do not cancel when the worst is asked for.
    SOLUTION.replace("sum(abs(q) * h for", "sqrt(sum((q * h) ** 2 for").replace(
        "half_steps)) /", "half_steps))) /"
    ),
    # The square root is missing.
    SOLUTION.replace(" / sqrt(len(query))", ""),
    # It holds, and no key reaches it.
    SOLUTION.replace(
        "sum(abs(q) * h for q, h in zip(query, half_steps))",
        "len(query) * max(map(abs, query)) * max(half_steps)",
    ),
    # Steps in place of half steps.
    SOLUTION.replace("abs(q) * h", "2 * abs(q) * h"),
)

# The first is for the hand: (3 * 0.5 + 1 * 0.5 + 2 * 0 + 2 * 1) / 2.
CASES = (
    ([3, -1, 2, -2], [0.5, 0.5, 0, 1]),
    ([1, -1, 1, -1], [1, 1, 1, 1]),
    ([5], [0.25]),
    ([-2, -2, -2, -2, -2, -2, -2, -2, -2], [0.1] * 9),
    ([0, 0, 7, 0], [1, 2, 0.125, 4]),
)


def _worst(query, half_steps):
    """Tries every combination of signs of the errors."""
    scores = [0.0]
    for q, h in zip(query, half_steps, strict=True):
        scores = [s + sign * q * h for s in scores for sign in (-1, 1)]
    return max(map(abs, scores)) / len(query) ** 0.5


def check(answer):
    for query, half_steps in CASES:
        expected, got = _worst(query, half_steps), answer(query, half_steps)
        if not isinstance(got, (int, float)) or abs(got - expected) > 1e-9:
            return (
                f"score_bound({query}, {half_steps}) should be {expected:g}, which some choice of "
                f"errors reaches and none exceeds, but yours gave {got!r}."
            )
    return None
