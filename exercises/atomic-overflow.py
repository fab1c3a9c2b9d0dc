"""A step over several rows happens as a whole or not at all."""

TASK = """
`rows` is a list of rows, each a list of the tokens it holds; none may hold more than `row_len`.
`new` maps row numbers to the tokens to append. The function below prints a warning when a row is
too short and goes on with the others. **Make it atomic.**

- If everything fits, append everything, in place. A row may become exactly full.
- If one row would get too long, raise `ValueError`, and leave **every** row as it was.
- A row number that is not there is a `ValueError` too. Mind the negative ones.
"""

STUB = """
def store(rows, new, row_len):
    for row, tokens in new.items():
        if len(rows[row]) + len(tokens) > row_len:
            print(f"warning: row {row} is full")
        else:
            rows[row].extend(tokens)
"""

SOLUTION = """
def store(rows, new, row_len):
    for row, tokens in new.items():
        if not 0 <= row < len(rows):
            raise ValueError(f"row {row} asked for, there are {len(rows)}")
        needed = len(rows[row]) + len(tokens)
        if needed > row_len:
            raise ValueError(f"row {row} needs {needed} slots of {row_len}")
    for row, tokens in new.items():
        rows[row].extend(tokens)
"""

WRONG = (
    STUB,
    # Raises in the middle: the rows before have their tokens already.
    """
def store(rows, new, row_len):
    for row, tokens in new.items():
        if not 0 <= row < len(rows) or len(rows[row]) + len(tokens) > row_len:
            raise ValueError(f"row {row} cannot take {len(tokens)} more")
        rows[row].extend(tokens)
""",
    # Refuses a row that would be exactly full.
    SOLUTION.replace("needed > row_len", "needed >= row_len"),
    # Counts the new tokens twice, as the position of the last one plus their number does.
    SOLUTION.replace("+ len(tokens)\n", "+ 2 * len(tokens) - 1\n"),
    # A negative number counts from the end.
    SOLUTION.replace("not 0 <= row < len(rows)", "row >= len(rows)"),
    # Repairs a list of its own and leaves the caller's as it was.
    SOLUTION.replace("rows[row].extend(tokens)", "rows[row] = rows[row] + tokens"),
    # Tells the caller by a value that nobody looks at.
    SOLUTION.replace("raise ValueError(f", "return (f"),
)

# Rows, new tokens, row length, whether it fits, why.
CASES = (
    ([[1], [2, 3]], {0: [4], 1: [5]}, 4, True, "everything fits"),
    ([[], []], {0: list(range(9))}, 16, True, "9 tokens in 16 slots"),
    ([[1, 2]], {0: [3, 4]}, 4, True, "exactly full"),
    ([[1], [2, 3, 4]], {0: [5], 1: [6, 7]}, 4, False, "row 1 would hold 5"),
    ([[1, 2, 3, 4], []], {0: [5], 1: [6]}, 4, False, "row 0 would hold 5"),
    ([[1], [2]], {0: [3], 2: [4]}, 4, False, "there is no row 2"),
    ([[1], [2]], {-1: [3]}, 4, False, "there is no row -1"),
    ([[1]], {}, 4, True, "nothing to store"),
)


def check(answer):
    for rows, new, row_len, fits, why in CASES:
        call = f"store({rows}, {new}, {row_len})"
        mine = [list(row) for row in rows]
        kept = list(mine)
        try:
            answer(mine, {row: list(tokens) for row, tokens in new.items()}, row_len)
            came = "nothing raised"
        except ValueError:
            came = "ValueError"
        expected = [row + new.get(i, []) if fits else row for i, row in enumerate(rows)]
        wanted = "nothing raised" if fits else "ValueError"
        if came != wanted or kept != expected:
            return (
                f"after {call} ({why}) the rows should be {expected} with {wanted}, "
                f"but yours left {kept} with {came}."
            )
    return None
