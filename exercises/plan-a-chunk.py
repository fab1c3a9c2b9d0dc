"""The rows of one step: where each new token stands in its text, and where it is stored."""

TASK = """
**Say where every new token of a step goes.** `work` holds `(computed, new, blocks)` for each
request of the step: how many of its tokens are computed already, how many are computed now, and the
blocks it holds, in order. Blocks have `size` slots; slot `s` of block `b` is `b * size + s`.

Return three lists: the `positions` of all new tokens, request after request; the `slots` in which
they are stored; and the `starts`, one more than there are requests: the tokens of request `i` are
rows `starts[i]` up to but not including `starts[i + 1]`.
"""

STUB = """
def plan(work, size):
    ...
"""

SOLUTION = """
def plan(work, size):
    positions, slots, starts = [], [], [0]
    for computed, new, blocks in work:
        for position in range(computed, computed + new):
            positions.append(position)
            slots.append(blocks[position // size] * size + position % size)
        starts.append(len(positions))
    return positions, slots, starts
"""

WRONG = (
    STUB,
    # Each chunk starts at 0 again.
    SOLUTION.replace("range(computed, computed + new)", "range(new)"),
    # As if a request's blocks lay side by side.
    SOLUTION.replace(
        "blocks[position // size] * size + position % size", "blocks[0] * size + position"
    ),
    # Looks the block up and forgets the place in it.
    SOLUTION.replace(" + position % size", ""),
    # Fills new blocks from their first slot on, whatever is in the last one.
    SOLUTION.replace("position % size", "(position - computed) % size"),
    # Lengths in place of offsets.
    SOLUTION.replace("starts.append(len(positions))", "starts.append(new)"),
    # Forgets where the first begins.
    SOLUTION.replace("[], [], [0]", "[], [], []"),
)

CASES = (
    (([(0, 3, [5])], 4), ([0, 1, 2], [20, 21, 22], [0, 3]), "a prompt in one block"),
    (([(6, 1, [0, 3])], 4), ([6], [14], [0, 1]), "one token of an answer"),
    (
        ([(6, 1, [0, 1]), (2, 7, [2, 4, 3])], 4),
        ([6, 2, 3, 4, 5, 6, 7, 8], [6, 10, 11, 16, 17, 18, 19, 12], [0, 1, 8]),
        "the second step above, with b's blocks in another order",
    ),
    (
        ([(8, 3, [7, 1, 0]), (8, 2, [7, 1, 4])], 4),
        ([8, 9, 10, 8, 9], [0, 1, 2, 16, 17], [0, 3, 5]),
        "two requests that share a prefix of two blocks",
    ),
    (([(3, 2, [9, 8, 7, 6, 5])], 1), ([3, 4], [6, 5], [0, 2]), "blocks of one token"),
    (([], 4), ([], [], [0]), "an empty step"),
)


def lists(got):
    return [lists(each) for each in got] if isinstance(got, (list, tuple)) else got


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if lists(got) != lists(expected):
            return f"plan{args} should return {expected} ({why}), but yours gave {got!r}."
    return None
