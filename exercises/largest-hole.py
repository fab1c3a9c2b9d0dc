"""What an allocator must know before it refuses."""

TASK = """
An arena of `size` slots has handed out some pieces, given as `(start, length)` in any order; they
do not overlap. **Return `(free, largest_hole)`**: the slots that are free in all, and the length of
the longest run of free slots.

- an arena without pieces is one hole;
- holes that touch are one hole;
- a full arena has no hole: `(0, 0)`.
"""

STUB = """
def free_and_largest_hole(size, pieces):
    ...
"""

SOLUTION = """
def free_and_largest_hole(size, pieces):
    free, largest, at = 0, 0, 0
    for start, length in sorted(pieces):
        free += start - at
        largest = max(largest, start - at)
        at = start + length
    return free + size - at, max(largest, size - at)
"""

WRONG = (
    # Takes the pieces in the order given.
    SOLUTION.replace("sorted(pieces)", "pieces"),
    # Forgets the hole behind the last piece.
    SOLUTION.replace("return free + size - at, max(largest, size - at)", "return free, largest"),
    # Takes all that is free for one hole.
    "def free_and_largest_hole(size, pieces):\n"
    "    free = size - sum(length for _, length in pieces)\n"
    "    return free, free\n",
    # Starts at the first piece.
    SOLUTION.replace("free, largest, at = 0, 0, 0", "free, largest, at = 0, 0, min(pieces)[0]"),
    STUB,
)

CASES = (
    ((8, [(0, 2), (4, 2)]), (4, 2), "holes [2, 4) and [6, 8)"),
    ((8, [(4, 2), (0, 2)]), (4, 2), "the same pieces in another order"),
    ((8, [(3, 1)]), (7, 4), "a hole on either side"),
    ((8, [(0, 3), (3, 5)]), (0, 0), "full"),
    ((8, [(0, 1), (1, 1)]), (6, 6), "two pieces that touch"),
    (
        (160, [(20, 20), (60, 20), (100, 20)]),
        (100, 40),
        "60 in holes of 20, and 40 at the end",
    ),
    ((5, []), (5, 5), "nothing is handed out"),
)


def check(answer):
    for (size, pieces), expected, why in CASES:
        got = answer(size, list(pieces))
        if got != expected:
            return (
                f"free_and_largest_hole({size}, {pieces}) should be {expected} ({why}), "
                f"but yours gave {got!r}."
            )
    return None
