"""What a sequence longer than its reservation costs, by three ways of going on."""

TASK = """
A sequence of `length` tokens is written, one by one, into a row of `reserved` slots. When a token
finds the row full, `way` says what happens:

- `"refuse"`: this token and all after it are refused, and none of them goes through the model;
- `"grow"`: the row becomes **twice** as long, and all it holds is copied;
- `"recompute"`: the row becomes twice as long and empty; nothing is copied, but all it held goes
  through the model again.

**Return `(row_len, stored, copied, forwarded)`**: the slots of the row in the end, the tokens
stored in it, the tokens copied on the way, and how often a token went through the model in all.
"""

STUB = """
def past_the_end(length, reserved, way):
    ...
"""

SOLUTION = """
def past_the_end(length, reserved, way):
    if way == "refuse":
        stored = min(length, reserved)
        return reserved, stored, 0, stored
    row_len = reserved
    moved = 0
    while row_len < length:
        moved += row_len
        row_len *= 2
    if way == "grow":
        return row_len, length, moved, length
    return row_len, length, 0, length + moved
"""

WRONG = (
    # Moves at a full row, though no token has asked for more.
    SOLUTION.replace("row_len < length", "row_len <= length"),
    # Doubles once, however long the text.
    SOLUTION.replace("while row_len", "if row_len"),
    # Copies the new row in place of what the old one held.
    SOLUTION.replace(
        "moved += row_len\n        row_len *= 2", "row_len *= 2\n        moved += row_len"
    ),
    # Counts the last move only.
    SOLUTION.replace("moved += row_len", "moved = row_len"),
    # Forwards tokens that it then refuses.
    SOLUTION.replace("return reserved, stored, 0, stored", "return reserved, stored, 0, length"),
    # Lets the row overflow.
    SOLUTION.replace("min(length, reserved)", "length"),
    # Recomputes and copies.
    SOLUTION.replace("return row_len, length, 0, ", "return row_len, length, moved, "),
    # Recomputes for nothing.
    SOLUTION.replace("length + moved", "length"),
    # Makes the row as long as the text.
    SOLUTION.replace(
        '    if way == "grow"', '    row_len = max(reserved, length)\n    if way == "grow"'
    ),
    STUB,
)

CASES = (
    ((128, 1024, "refuse"), (1024, 128, 0, 128), "87.5 % of the row stays empty"),
    ((128, 1024, "grow"), (1024, 128, 0, 128), "nothing grows that does not have to"),
    ((2048, 2048, "grow"), (2048, 2048, 0, 2048), "full, and no token asks for more"),
    ((2049, 2048, "grow"), (4096, 2049, 2048, 2049), "one token too many: 2,048 move"),
    ((2049, 2048, "refuse"), (2048, 2048, 0, 2048), "one token is refused"),
    ((2049, 2048, "recompute"), (4096, 2049, 0, 4097), "2,048 tokens a second time"),
    ((8192, 1024, "grow"), (8192, 8192, 7168, 8192), "1,024, 2,048 and 4,096 move"),
    ((8192, 1024, "recompute"), (8192, 8192, 0, 15360), "the same three, through the model"),
    ((5, 1, "grow"), (8, 5, 7, 5), "1, 2 and 4 move"),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            return f"past_the_end{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
