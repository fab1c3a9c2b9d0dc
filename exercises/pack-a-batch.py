"""From a batch's rectangle with pads to packed tokens, and what each sequence then has."""

TASK = """
`mask` has a row for each sequence and a column for each position so far, new ones included: 1 for a
token, 0 for a pad. The last `num_new` columns are new; what stood in the columns before is stored,
pads left out. **Return `(index, query_start, context_lens)`.**

- `index`: which of the new columns are tokens. The new columns of all rows are counted in one run,
  row after row: column `t` of row `b` is `b * num_new + t`.
- `query_start`: one number more than there are rows; the tokens of row `b` are those from
  `query_start[b]` up to, not including, `query_start[b + 1]` in `index`.
- `context_lens`: by row, how many tokens it has once the new ones are stored.

A row may have no new token at all.
"""

STUB = """
def pack(mask, num_new):
    index, query_start, context_lens = [], [0], []
    for b, row in enumerate(mask):
        ...
    return index, query_start, context_lens
"""

SOLUTION = """
def pack(mask, num_new):
    index, query_start, context_lens = [], [0], []
    for b, row in enumerate(mask):
        new = row[len(row) - num_new:]
        index += [b * num_new + t for t, real in enumerate(new) if real]
        query_start.append(len(index))
        context_lens.append(sum(row))
    return index, query_start, context_lens
"""

WRONG = (
    STUB,
    # Stores the rectangle.
    SOLUTION.replace(" if real]", "]"),
    # Takes the first columns for the new ones.
    SOLUTION.replace("row[len(row) - num_new:]", "row[:num_new]"),
    # Counts columns of the whole mask.
    SOLUTION.replace("b * num_new + t", "b * len(row) + t"),
    # Forgets which row it is in.
    SOLUTION.replace("b * num_new + t", "t"),
    # Pads are part of the context.
    SOLUTION.replace("sum(row)", "len(row)"),
    # Only the new tokens are.
    SOLUTION.replace("sum(row)", "sum(new)"),
    # Every row brings as many.
    SOLUTION.replace("query_start.append(len(index))", "query_start.append((b + 1) * num_new)"),
    # How many each row brings, not where it begins.
    SOLUTION.replace("query_start.append(len(index))", "query_start.append(sum(new))"),
    # A slice from minus zero is the whole row.
    SOLUTION.replace("row[len(row) - num_new:]", "row[-num_new:]"),
)

CASES = (
    (([[0, 1, 1], [1, 1, 1]], 3), ([1, 2, 3, 4, 5], [0, 2, 5], [2, 3]), "a prompt, one pad"),
    (([[0, 1, 1, 1], [1, 1, 1, 1]], 1), ([0, 1], [0, 1, 2], [3, 4]), "a token for each"),
    (
        ([[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]], 2),
        ([3, 4, 5], [0, 0, 1, 3], [0, 1, 4]),
        "a chunk that is all pads for the first row",
    ),
    (([[1, 0, 1, 1]], 2), ([0, 1], [0, 2], [3]), "a pad further back"),
    (([[0, 1], [1, 1]], 0), ([], [0, 0, 0], [1, 2]), "nothing new"),
)


def check(answer):
    for (mask, num_new), expected, why in CASES:
        got = answer([list(row) for row in mask], num_new)
        got = tuple(map(list, got)) if isinstance(got, tuple) else got
        if got != expected:
            return f"pack({mask}, {num_new}) should return {expected} ({why}), yours gave {got!r}."
    return None
