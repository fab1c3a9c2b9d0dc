"""Prerequisite, computer architecture: where an element of an array lies."""

TASK = """
An array of some shape lies in memory row by row: the last index moves fastest. **Return how many
bytes after its start the element at `index` lies**, with `element_bytes` bytes an element.
"""

STUB = """
def address(index, shape, element_bytes):
    ...
"""

SOLUTION = """
def address(index, shape, element_bytes):
    offset = 0
    for i, size in zip(index, shape):
        offset = offset * size + i
    return offset * element_bytes
"""

WRONG = (
    # The first index moves fastest.
    SOLUTION.replace("zip(index, shape)", "zip(index[::-1], shape[::-1])"),
    # Counts elements, not bytes.
    SOLUTION.replace("offset * element_bytes", "offset"),
    # Adds the indices.
    "def address(index, shape, element_bytes):\n    return sum(index) * element_bytes\n",
    STUB,
)

CASES = (
    (((5,), (8,), 4), 20, "the sixth element of a row"),
    (((1, 0), (3, 10), 2), 20, "one whole row of 10 lies before it"),
    (((2, 1, 3), (4, 5, 6), 1), 69, "2 x 30 + 1 x 6 + 3"),
    (((0, 0, 0), (4, 5, 6), 8), 0, "the first element"),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            given = ", ".join(map(str, args))
            return f"address({given}) should be {expected} ({why}), but yours gave {got!r}."
    return None
