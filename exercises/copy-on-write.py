"""One step of forked sequences: who takes a block, who copies what, and who need not."""

TASK = """
Several sequences write one token each in one step. `tables` maps a name to its blocks in logical
order, `lengths` to its tokens; blocks have `block_size` slots, and sequences may share them. `free`
are the free blocks, the next one in front. `writers` are the names that write, in order.
**Return the copies of the step**, a list of `(src, dst, num_tokens)`.

- whoever stands at the end of a full block (or has none) takes a free one and copies nothing;
- whoever would write into a block that another table names *at that moment*, wherever in it, takes
  a free block in its place, and copies as many tokens as it has in it;
- whoever is alone in its block writes there.
"""

STUB = """
def copies_of(tables, lengths, free, writers, block_size):
    copies = []
    for name in writers:
        ...
    return copies
"""

SOLUTION = """
def copies_of(tables, lengths, free, writers, block_size):
    copies = []
    for name in writers:
        table, filled = tables[name], lengths[name] % block_size
        if not filled:
            table.append(free.pop(0))
        elif sum(table[-1] in other for other in tables.values()) > 1:
            copies.append((table[-1], free[0], filled))
            table[-1] = free.pop(0)
    return copies
"""

WRONG = (
    STUB,
    # Everybody copies, the last one too: counts the sharers once, before the step.
    SOLUTION.replace(
        "    for name in writers:",
        "    before = {n: list(t) for n, t in tables.items()}\n    for name in writers:",
    ).replace("in tables.values()", "in before.values()"),
    # Copies the whole block.
    SOLUTION.replace("free[0], filled", "free[0], block_size"),
    # Copies full blocks, too.
    SOLUTION.replace("if not filled:", "if not table:"),
    # Copies although nobody shares.
    SOLUTION.replace("> 1", "> 0"),
    # Looks at the last block of the others only.
    SOLUTION.replace("table[-1] in other", "table[-1] in other[-1:]"),
    # Copies everything a clone would copy.
    SOLUTION.replace("free[0], filled", "free[0], lengths[name]"),
    # Copies and goes on writing in the shared block.
    SOLUTION.replace("table[-1] = free.pop(0)", "free.pop(0)"),
    # Forgets that a new block leaves the free line.
    SOLUTION.replace("table.append(free.pop(0))", "table.append(free[0])"),
)

CASES = (
    ({"a": [0, 1]}, {"a": 6}, [2], "a", 4, [], "nobody shares"),
    ({"a": [0, 1], "b": [0, 1]}, {"a": 8, "b": 8}, [2, 3], "ab", 4, [], "full blocks only"),
    (
        {"a": [0, 1], "b": [0, 1]}, {"a": 6, "b": 6}, [2, 3], "ab", 4, [(1, 2, 2)],
        "b is alone in block 1 once a has left it",
    ),
    (
        {"a": [0, 1], "b": [0, 1]}, {"a": 6, "b": 6}, [2, 3], "b", 4, [(1, 2, 2)],
        "a does not write, but it reads",
    ),
    (
        {"a": [5], "b": [5], "c": [5], "d": [5]}, dict.fromkeys("abcd", 3), [7, 8, 9], "dbca", 4,
        [(5, 7, 3), (5, 8, 3), (5, 9, 3)], "four sharers, three copies",
    ),
    (
        {"a": [0, 1, 2], "b": [0, 1]}, {"a": 9, "b": 6}, [3], "b", 4, [(1, 3, 2)],
        "block 1 is full for a, and b holds two of its tokens",
    ),
    (
        {"a": [0], "b": [1, 2], "c": [1, 2]}, {"a": 4, "b": 5, "c": 5}, [6, 7], "abc", 4,
        [(2, 7, 1)], "block 6 went to a",
    ),
    ({"a": [], "b": []}, {"a": 0, "b": 0}, [4, 2], "ab", 16, [], "empty sequences"),
    ({"a": [3, 4], "b": [3, 4]}, {"a": 2, "b": 2}, [0, 1], "ab", 1, [], "blocks of one token"),
)  # fmt: skip


def check(answer):
    for tables, lengths, free, writers, size, expected, why in CASES:
        given = {name: list(table) for name, table in tables.items()}
        got = answer(given, dict(lengths), list(free), list(writers), size)
        if got != expected:
            return (
                f"copies_of({tables}, {lengths}, {free}, {list(writers)}, {size}) should return "
                f"{expected} ({why}), but yours gave {got!r}."
            )
    return None
