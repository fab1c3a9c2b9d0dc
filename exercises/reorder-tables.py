"""What a beam search does to block tables: who goes on from whom, and which blocks are free."""

TASK = """
`tables` has a list of blocks for each beam; beams may share blocks. After a step of beam search,
beam `i` goes on from the text of beam `sources[i]`. **Change `tables` so that it does, and return
the blocks that nobody names any more, in ascending order.**

No key is copied: a block is named by as many tables as go on from it. Each beam keeps a list of its
own, since each will append blocks of its own.
"""

STUB = """
def reorder(tables, sources):
    freed = []
    for i, source in enumerate(sources):
        tables[i] = tables[source]
    return freed
"""

SOLUTION = """
def reorder(tables, sources):
    before = {block for table in tables for block in table}
    tables[:] = [list(tables[source]) for source in sources]
    after = {block for table in tables for block in table}
    return sorted(before - after)
"""

WRONG = (
    STUB,
    # One beam after the other: the third reads what the first has become.
    SOLUTION.replace(
        "    tables[:] = [list(tables[source]) for source in sources]\n",
        "    for i, source in enumerate(sources):\n        tables[i] = list(tables[source])\n",
    ),
    # Two beams share a list, and each appends to both.
    SOLUTION.replace("list(tables[source])", "tables[source]"),
    # Frees whatever a loser named, shared or not.
    SOLUTION.replace(
        "sorted(before - after)",
        "sorted(before)",
    ),
    # Frees a shared block once for each beam that let go of it.
    """
def reorder(tables, sources):
    lost = [tables[i] for i in range(len(tables)) if i not in sources]
    tables[:] = [list(tables[source]) for source in sources]
    return sorted(block for table in lost for block in table)
""",
    # Frees nothing.
    SOLUTION.replace("return sorted(before - after)", "return []"),
    # Returns the new tables and leaves the old ones.
    SOLUTION.replace("tables[:] =", "tables ="),
    # Reads the order the other way round.
    SOLUTION.replace(
        "[list(tables[source]) for source in sources]",
        "[list(tables[sources.index(i)]) if i in sources else list(tables[i])"
        " for i in range(len(tables))]",
    ),
)

CASES = (
    (([[0, 1], [0, 2]], [0, 0]), ([[0, 1], [0, 1]], [2]), "the second beam lost"),
    (([[0, 1], [0, 2]], [1, 0]), ([[0, 2], [0, 1]], []), "they change places"),
    (([[0], [1], [2]], [1, 2, 0]), ([[1], [2], [0]], []), "they go round"),
    (
        ([[0, 1, 3], [0, 1, 4], [0, 2, 5]], [2, 2, 2]),
        ([[0, 2, 5], [0, 2, 5], [0, 2, 5]], [1, 3, 4]),
        "block 1 had two names, and is free once",
    ),
    (([[7], [], [7, 3]], [0, 0, 1]), ([[7], [7], []], [3]), "a beam without a block"),
)


def check(answer):
    for (tables, sources), (expected, freed), why in CASES:
        mine = [list(table) for table in tables]
        got = answer(mine, list(sources))
        if mine != expected or got != freed:
            return (
                f"after reorder({tables}, {sources}) the tables should be {expected}, free {freed}"
                f" ({why}), yours left {mine} and returned {got!r}."
            )
        for i, table in enumerate(mine):
            table.append(99)
            if any(99 in other for other in mine[i + 1 :]):
                return (
                    f"after reorder({tables}, {sources}) each beam should be alone with its list,"
                    f" but in yours what beam {i} appends shows in another's."
                )
    return None
