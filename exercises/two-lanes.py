"""When is the last layer done if copies and computation overlap, with so many buffers?"""

TASK = """
A prefix comes up layer by layer. One lane copies the layers in order, another one computes them in
order. `copies[i]` and `computes[i]` are the times of layer `i`; both lists are equally long and not
empty. **Return the time at which the last layer has been computed**, if:

- a layer computes once its own copy is there and the layer before has been computed;
- the lane copies one layer after the other;
- there is room for `distance` layers (at least 1) that are ahead: the copy of layer `i` may begin
  when layer `i - distance` *begins* to compute.
"""

STUB = """
def done_at(copies, computes, distance):
    return sum(copies) + sum(computes)
"""

SOLUTION = """
def done_at(copies, computes, distance):
    copied, began, ended = 0, [], 0
    for i, (copy, compute) in enumerate(zip(copies, computes)):
        free = began[i - distance] if i >= distance else 0
        copied = max(copied, free) + copy
        began.append(max(ended, copied))
        ended = began[-1] + compute
    return ended
"""

WRONG = (
    STUB,
    # The longer lane alone.
    "def done_at(copies, computes, distance):\n    return max(sum(copies), sum(computes))\n",
    # Takes all layers for equal.
    "def done_at(copies, computes, distance):\n    c, k = max(copies), max(computes)\n"
    "    return c + k + (len(copies) - 1) * max(c, k)\n",
    # No limit to what may be ahead.
    SOLUTION.replace("free = began[i - distance] if i >= distance else 0", "free = 0"),
    # Waits until the layer has ended.
    SOLUTION.replace(
        "began.append(max(ended, copied))", "began.append(max(ended, copied) + compute)"
    ).replace("ended = began[-1] + compute", "ended = began[-1]"),
    # One buffer too few.
    SOLUTION.replace(
        "began[i - distance] if i >= distance",
        "began[i - distance + 1 - (distance < 2)] if i >= distance",
    ),
)

CASES = (
    ([2, 2, 2], [3, 3, 3], 3, "computing is the longer lane"),
    ([4, 4, 4], [1, 1, 1], 3, "copying is the longer lane"),
    ([5], [7], 1, "one layer"),
    ([1, 9, 1, 1], [4, 4, 4, 4], 4, "one layer is larger"),
    ([1, 1, 1, 9], [9, 1, 1, 1], 1, "no room to copy ahead"),
    ([1, 1, 1, 9], [9, 1, 1, 1], 2, "room for two"),
    ([1, 1, 1, 9], [9, 1, 1, 1], 4, "room for all"),
    ([0, 0, 0], [2, 2, 2], 1, "a link without a delay"),
    ([3, 2, 6, 1, 5, 2], [2, 7, 1, 4, 1, 3], 2, "six layers"),
)


def _expected(copies, computes, distance):
    moved, began = [], []
    for i in range(len(copies)):
        first = max([moved[-1]] if moved else [0])
        first = max(first, began[i - distance] if i >= distance else 0)
        moved.append(first + copies[i])
        before = began[-1] + computes[i - 1] if began else 0
        began.append(max(before, moved[-1]))
    return began[-1] + computes[-1]


def check(answer):
    for copies, computes, distance, why in CASES:
        expected = _expected(copies, computes, distance)
        got = answer(list(copies), list(computes), distance)
        if got != expected:
            return (
                f"done_at({copies}, {computes}, {distance}) should be {expected} ({why}),"
                f" but yours gave {got!r}."
            )
    return None
