"""Giving a piece back so that neighbouring holes become one."""

TASK = """
An arena keeps its holes as a list of `(start, size)`, sorted by address; no two touch. **Write
`give_back(holes, piece)`**: return the list of holes after `piece`, also `(start, size)`, has been
freed.

- a hole that ends where the piece begins, and one that begins where it ends, join with it;
- the result is sorted, and no two holes touch;
- the list you are given stays as it is;
- a piece that overlaps a hole was not handed out: raise `ValueError`.
"""

STUB = """
def give_back(holes, piece):
    ...
"""

SOLUTION = """
def give_back(holes, piece):
    start, end = piece[0], piece[0] + piece[1]
    before, behind = [], []
    for at, size in holes:
        if at < end and start < at + size:
            raise ValueError(f"{piece} overlaps the hole at {at}")
        if at + size == start:
            start = at
        elif at == end:
            end = at + size
        elif at < start:
            before.append((at, size))
        else:
            behind.append((at, size))
    return [*before, (start, end - start), *behind]
"""

WRONG = (
    # Joins nothing.
    "def give_back(holes, piece):\n    return sorted([*holes, piece])\n",
    # Joins with the hole in front only.
    SOLUTION.replace("elif at == end:", "elif False:"),
    # Joins with the hole behind only.
    SOLUTION.replace("if at + size == start:", "if False:"),
    # Accepts what is free already.
    SOLUTION.replace("if at < end and start < at + size:", "if False:"),
    # Takes a hole that merely touches for an overlap.
    SOLUTION.replace("at < end and start < at + size", "at <= end and start <= at + size"),
    # Appends at the end.
    SOLUTION.replace(
        "[*before, (start, end - start), *behind]", "[*before, *behind, (start, end - start)]"
    ),
    # Changes the list it was given.
    "def give_back(holes, piece):\n"
    "    holes.append(piece)\n"
    "    holes.sort()\n"
    "    i = 0\n"
    "    while i + 1 < len(holes):\n"
    "        (a, n), (b, m) = holes[i], holes[i + 1]\n"
    "        if a + n > b:\n"
    "            raise ValueError('overlap')\n"
    "        if a + n == b:\n"
    "            holes[i : i + 2] = [(a, n + m)]\n"
    "        else:\n"
    "            i += 1\n"
    "    return holes\n",
    STUB,
)

CASES = (
    ([], (0, 8), [(0, 8)], "the arena was full"),
    ([(0, 2)], (2, 3), [(0, 5)], "the hole in front touches"),
    ([(5, 3)], (2, 3), [(2, 6)], "the hole behind touches"),
    ([(0, 2), (5, 3)], (2, 3), [(0, 8)], "both touch"),
    ([(0, 2), (6, 2)], (3, 2), [(0, 2), (3, 2), (6, 2)], "neither touches"),
    ([(4, 2)], (0, 2), [(0, 2), (4, 2)], "in front of all holes"),
    ([(0, 1), (2, 1), (8, 1)], (3, 2), [(0, 1), (2, 3), (8, 1)], "one of three touches"),
    ([(0, 4)], (0, 4), ValueError, "it is a hole already: freed twice"),
    ([(0, 4)], (3, 2), ValueError, "its first slot is free"),
    ([(4, 4)], (2, 3), ValueError, "its last slot is free"),
    ([(3, 2)], (0, 8), ValueError, "a hole lies inside it"),
)


def outcome(answer, holes, piece):
    try:
        got = answer(holes, piece)
    except ValueError:
        return ValueError
    return got if got is None else [tuple(hole) for hole in got]


def check(answer):
    for holes, piece, expected, why in CASES:
        given = list(holes)
        got, call = outcome(answer, given, piece), f"give_back({holes}, {piece})"
        if got != expected:
            return f"{call} should be {named(expected)} ({why}), but yours gave {named(got)}."
        if given != holes:
            return f"{call} should be given its list back unchanged; yours made it {given}."
    return None


def named(value):
    return "a ValueError" if value is ValueError else repr(value)
