"""Prerequisite, deep-learning frameworks: the shape of a batched matrix product."""

TASK = """
`a @ b` multiplies the last two axes as matrices and leaves the axes before them alone. **Return the
shape of the result**, or `None` where it does not exist. Both shapes have the same number of axes,
at least two, and the leading axes must be equal (no broadcasting here).
"""

STUB = """
def matmul_shape(a, b):
    ...
"""

SOLUTION = """
def matmul_shape(a, b):
    if a[:-2] != b[:-2] or a[-1] != b[-2]:
        return None
    return (*a[:-1], b[-1])
"""

WRONG = (
    # Does not look at the inner sizes.
    "def matmul_shape(a, b):\n    return (*a[:-1], b[-1]) if a[:-2] == b[:-2] else None\n",
    # Does not look at the leading axes.
    "def matmul_shape(a, b):\n    return (*a[:-1], b[-1]) if a[-1] == b[-2] else None\n",
    # Keeps the inner size.
    SOLUTION.replace("(*a[:-1], b[-1])", "(*a[:-2], a[-1], b[-1])"),
    STUB,
)

CASES = (
    (((2, 3), (3, 4)), (2, 4), "two matrices"),
    (((8, 9, 1, 64), (8, 9, 64, 100)), (8, 9, 1, 100), "one query over 100 keys, 8 requests"),
    (((8, 9, 1, 64), (8, 9, 100, 64)), None, "the keys were not transposed"),
    (((2, 5, 3), (4, 3, 5)), None, "leading axes 2 and 4"),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            return f"matmul_shape{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
