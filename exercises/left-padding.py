"""Positions of the tokens of a batch whose shorter rows are padded on the left."""

TASK = """
A batch is padded on the left to one length. Its mask has a row for each sequence: 1 for a token, 0
for padding. **Return `(positions, next_positions)`.**

- `positions` has the shape of the mask: a token's position counts the tokens of its own row before
  it; padding gets 0, which nobody reads;
- `next_positions` has one number a row: where the row's next token goes.

As it stands, all rows share the positions of the longest.
"""

STUB = """
def positions_of(mask):
    width = len(mask[0])
    return [list(range(width)) for _ in mask], [width for _ in mask]
"""

SOLUTION = """
def positions_of(mask):
    positions, following = [], []
    for row in mask:
        seen, mine = 0, []
        for real in row:
            mine.append(seen if real else 0)
            seen += real
        positions.append(mine)
        following.append(seen)
    return positions, following
"""

WRONG = (
    STUB,
    # Positions from 1.
    SOLUTION.replace("seen if real", "seen + 1 if real"),
    # The next position is that of the last token.
    SOLUTION.replace("following.append(seen)", "following.append(seen - 1)"),
    # The next position counts the padding.
    SOLUTION.replace("following.append(seen)", "following.append(len(row))"),
    # Right tokens, but padding keeps the place it has in the row.
    SOLUTION.replace("seen if real else 0", "seen if real else len(mine)"),
    # Counts on from row to row.
    SOLUTION.replace(
        "    positions, following = [], []\n    for row in mask:\n        seen, mine = 0, []",
        "    positions, following, seen = [], [], 0\n    for row in mask:\n        mine = []",
    ),
    # Takes the padding for tokens.
    SOLUTION.replace("seen += real", "seen += 1"),
    # Right for left padding only when the longest row comes last.
    "def positions_of(mask):\n"
    "    width, most = len(mask[0]), sum(mask[-1])\n"
    "    rows = [[max(0, i - (most - sum(row))) for i in range(width)] for row in mask]\n"
    "    return rows, [sum(row) for row in mask]\n",
)

CASES = (
    (
        [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]],
        ([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]], [3, 5]),
        "three tokens and five",
    ),
    (
        [[1, 1, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1]],
        ([[0, 1, 2, 3], [0, 0, 0, 0], [0, 0, 1, 2]], [4, 1, 3]),
        "the longest row comes first",
    ),
    ([[1]], ([[0]], [1]), "one token"),
    ([[0, 1, 1]], ([[0, 0, 1]], [2]), "padded further than its longest row"),
    ([[0, 0], [1, 1]], ([[0, 0], [0, 1]], [0, 2]), "a row without tokens starts at 0"),
)


def _plain(got):
    if not isinstance(got, (list, tuple)) or len(got) != 2:
        return None
    positions, following = got
    if not all(isinstance(part, (list, tuple)) for part in (positions, following, *positions)):
        return None
    return [list(row) for row in positions], list(following)


def check(answer):
    for mask, expected, why in CASES:
        got = answer([list(row) for row in mask])
        if _plain(got) != expected:
            return f"positions_of({mask}) should be {expected} ({why}), but yours gave {got!r}."
    return None
