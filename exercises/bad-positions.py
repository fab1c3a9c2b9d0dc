"""Refuse a step with a bad position before anything of it is written."""

TASK = """
A cache has rows of slots, each a plain list. A step wants to write some tokens, given as
`(row, position, token)`. **Write all of them and return `None`; or, if one is bad, write nothing
and return the index of the first bad one.** The host can do all of this before it asks the device
for anything, so nothing waits.

A write is bad when

- there is no such row, or no such position in it; negative numbers are bad, too;
- an earlier write of the same step goes to the same slot.
"""

STUB = """
def write_step(rows, writes):
    for index, (row, position, token) in enumerate(writes):
        if position >= len(rows[row]):
            return index
        rows[row][position] = token
    return None
"""

SOLUTION = """
def write_step(rows, writes):
    taken = set()
    for index, (row, position, token) in enumerate(writes):
        if not 0 <= row < len(rows) or not 0 <= position < len(rows[row]):
            return index
        if (row, position) in taken:
            return index
        taken.add((row, position))
    for row, position, token in writes:
        rows[row][position] = token
    return None
"""

WRONG = (
    STUB,
    # Writes until it meets the bad one.
    SOLUTION.replace(
        "taken.add((row, position))", "taken.add((row, position)); rows[row][position] = token"
    ),
    # Lets -1 write the last slot.
    SOLUTION.replace("not 0 <= position < len(rows[row])", "position >= len(rows[row])"),
    # Lets row -1 be the last row.
    SOLUTION.replace("not 0 <= row < len(rows)", "row >= len(rows)"),
    # One slot too many.
    SOLUTION.replace("position < len(rows[row])", "position <= len(rows[row])"),
    # Refuses the first slot.
    SOLUTION.replace("not 0 <= position", "not 0 < position"),
    # Takes equal positions of different rows for one slot.
    SOLUTION.replace("(row, position) in taken", "position in taken").replace(
        "taken.add((row, position))", "taken.add(position)"
    ),
    # Does not see a slot written twice.
    SOLUTION.replace("(row, position) in taken", "False"),
    # Names the last bad one.
    "def write_step(rows, writes):\n"
    "    taken, bad = set(), None\n"
    "    for index, (row, position, token) in enumerate(writes):\n"
    "        if not 0 <= row < len(rows) or not 0 <= position < len(rows[row]):\n"
    "            bad = index\n"
    "        elif (row, position) in taken:\n"
    "            bad = index\n"
    "        taken.add((row, position))\n"
    "    if bad is None:\n"
    "        for row, position, token in writes:\n"
    "            rows[row][position] = token\n"
    "    return bad\n",
    # Looks for doubles in the whole step before it looks for what is not there.
    "def write_step(rows, writes):\n"
    "    slots = [(row, position) for row, position, _ in writes]\n"
    "    for index, slot in enumerate(slots):\n"
    "        if slot in slots[:index]:\n"
    "            return index\n"
    "    for index, (row, position) in enumerate(slots):\n"
    "        if not 0 <= row < len(rows) or not 0 <= position < len(rows[row]):\n"
    "            return index\n"
    "    for row, position, token in writes:\n"
    "        rows[row][position] = token\n"
    "    return None\n",
    # The other way round: doubles only when everything is there.
    "def write_step(rows, writes):\n"
    "    slots = [(row, position) for row, position, _ in writes]\n"
    "    for index, (row, position) in enumerate(slots):\n"
    "        if not 0 <= row < len(rows) or not 0 <= position < len(rows[row]):\n"
    "            return index\n"
    "    for index, slot in enumerate(slots):\n"
    "        if slot in slots[:index]:\n"
    "            return index\n"
    "    for row, position, token in writes:\n"
    "        rows[row][position] = token\n"
    "    return None\n",
    # Takes all rows to be as long as the first.
    SOLUTION.replace("position < len(rows[row])", "position < len(rows[0])"),
    # Leaves the bad ones out and writes the rest.
    "def write_step(rows, writes):\n"
    "    first = None\n"
    "    for index, (row, position, token) in enumerate(writes):\n"
    "        if 0 <= row < len(rows) and 0 <= position < len(rows[row]):\n"
    "            rows[row][position] = token\n"
    "        elif first is None:\n"
    "            first = index\n"
    "    return first\n",
)

CASES = (
    ([(0, 2, "a"), (1, 0, "b"), (1, 1, "c")], None, "all are good"),
    ([(0, 2, "a"), (1, -1, "b")], 1, "position -1 is no position"),
    ([(0, 3, "a"), (0, 4, "b")], 1, "a row of 4 slots ends at position 3"),
    ([(-1, 0, "a")], 0, "there is no row -1"),
    ([(2, 0, "a"), (0, 0, "b")], 0, "there are rows 0 and 1"),
    ([(0, 1, "a"), (1, 1, "b"), (0, 1, "c")], 2, "slot (0, 1) twice; (1, 1) is another slot"),
    ([(1, 5, "a"), (1, 6, "b"), (0, 9, "c")], 1, "row 1 has 6 slots, and the first bad one counts"),
    ([(0, 9, "a"), (1, 0, "b"), (1, 0, "c")], 0, "position 9 comes before the slot named twice"),
    ([(1, 0, "a"), (1, 0, "b"), (0, 9, "c")], 1, "the slot named twice comes before position 9"),
    ([], None, "nothing to write"),
)


def _fresh():
    return [["."] * 4, ["."] * 6]


def _after(writes, expected):
    rows = _fresh()
    for row, position, token in writes if expected is None else ():
        rows[row][position] = token
    return rows


def _text(rows):
    return " ".join("".join(map(str, row)) for row in rows)


def check(answer):
    for writes, expected, why in CASES:
        rows = _fresh()
        call = f"write_step(rows, {writes}) with rows {_text(rows)}"
        try:
            got = answer(rows, list(writes))
        except IndexError:
            return f"{call} should return {expected} ({why}), but yours raised IndexError."
        if got != expected or isinstance(got, bool):
            return f"{call} should return {expected} ({why}), but yours gave {got!r}."
        if rows != _after(writes, expected):
            return (
                f"after {call} the rows should be {_text(_after(writes, expected))} ({why}), but "
                f"yours left {_text(rows)}."
            )
    return None
