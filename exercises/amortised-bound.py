"""The amortised bound of a growing row, proved by counting at every length."""

from math import ceil

TASK = """
A row has `first` slots. Tokens come one by one. When one comes to a full row, everything stored is
copied to a row `growth` times as long, **rounded up**, and at least one slot longer. **Return
`(stored, copied)`** at the number of stored tokens, from 1 to `limit`, at which the copies so far
are the most for each stored token; the smallest such number if there are several.

- `copied` counts tokens over the whole life so far, not the last copy alone;
- an exactly full row is not yet copied: that happens when the next token comes;
- compare products of whole numbers rather than quotients: `a / b > c / d` is `a * d > c * b`.
"""

STUB = """
from math import ceil

def worst(first, growth, limit):
    row, copied = first, 0
    ...
    return limit, copied
"""

SOLUTION = """
from math import ceil

def worst(first, growth, limit):
    row, copied, best = first, 0, (1, 0)
    for stored in range(1, limit + 1):
        if stored > row:
            copied += row
            row = max(row + 1, ceil(row * growth))
        if copied * best[0] > best[1] * stored:
            best = stored, copied
    return best
"""

WRONG = (
    STUB,
    # Looks at the last length only.
    SOLUTION.replace("return best", "return limit, copied"),
    # Copies as soon as the row is full.
    SOLUTION.replace("stored > row:", "stored >= row:"),
    # Copies the new row, empty slots and all.
    SOLUTION.replace("            copied += row\n", "").replace(
        "ceil(row * growth))\n", "ceil(row * growth))\n            copied += row\n"
    ),
    # Rounds down, which breaks the bound for small factors.
    SOLUTION.replace("ceil(row * growth)", "int(row * growth)"),
    # Remembers the last copy alone.
    SOLUTION.replace("copied += row", "copied = row"),
    # Takes the last of equal ones.
    SOLUTION.replace("copied * best[0] > best[1] * stored", "copied * best[0] >= best[1] * stored"),
)

# First row, factor, limit.
CASES = (
    (4, 2, 9),
    (1, 2, 100),
    (4, 2, 4),
    (4, 2, 8),
    (2, 1.5, 60),
    (16, 1.25, 500),
    (3, 4, 40),
    (10, 1.5, 11),
    (1, 1.125, 300),
)


def _expected(first, growth, limit):
    row, copied, best = first, 0, (1, 0)
    for stored in range(1, limit + 1):
        if stored > row:
            copied, row = copied + row, max(row + 1, ceil(row * growth))
        if copied * best[0] > best[1] * stored:
            best = stored, copied
    return best


def check(answer):
    for case in CASES:
        got, expected = answer(*case), _expected(*case)
        if not isinstance(got, (tuple, list)) or tuple(got) != expected:
            return f"worst{case} should return {expected}, but yours gave {got!r}."
    return None
