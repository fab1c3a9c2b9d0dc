"""Prerequisite, transformers: what attention does with its weights."""

TASK = """
Attention gives each token a weight and returns the weighted sum of their value rows. **Return that
row**, for a list of weights and a list of equally long rows.
"""

STUB = """
def weighted_sum(weights, rows):
    ...
"""

SOLUTION = """
def weighted_sum(weights, rows):
    columns = zip(*rows)
    return [sum(w * x for w, x in zip(weights, column)) for column in columns]
"""

WRONG = (
    # Sums each row instead of each column.
    SOLUTION.replace("zip(*rows)", "rows"),
    # Forgets the weights.
    "def weighted_sum(weights, rows):\n    return [sum(column) for column in zip(*rows)]\n",
    STUB,
)

CASES = (
    (([1.0], [[5.0, 6.0]]), [5.0, 6.0], "a single token"),
    (([0.5, 0.5], [[0.0, 4.0], [2.0, 0.0]]), [1.0, 2.0], "the mean of two rows"),
    (([0.25, 0.75, 0.0], [[4.0], [8.0], [99.0]]), [7.0], "the third token is not looked at"),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            given = ", ".join(map(repr, args))
            return f"weighted_sum({given}) should be {expected} ({why}), but yours gave {got!r}."
    return None
