"""Which tokens one head keeps when those that were looked at most stay."""

TASK = """
A head has room for `budget` tokens. Row `i` of `rows` is the attention of token `i` on the tokens
0 to i, as if nothing had been given up. **Return the sorted positions held after the last row.**

- Tokens come one by one. A token looks at what is held and at itself; its attention on what is
  gone is dealt out among these in proportion, so that it adds to 1 again.
- The score of a token is the sum of all the attention it has been given, its own included.
- If more than `budget` are held after a token, one goes for good: of those that are not among the
  `recent` newest, the one with the lowest score (of equals, the oldest).
"""

STUB = """
def held(rows, budget, recent):
    totals = [sum(row[at] for row in rows[at:]) for at in range(len(rows))]
    best = sorted(range(len(rows)), key=lambda at: totals[at])[-budget:]
    return sorted(best)
"""

SOLUTION = """
def held(rows, budget, recent):
    scores = {}
    for token, row in enumerate(rows):
        scores[token] = 0.0
        total = sum(row[at] for at in scores)
        for at in scores:
            scores[at] += row[at] / total
        if len(scores) > budget:
            older = [at for at in scores if at <= token - recent]
            del scores[min(older, key=lambda at: (scores[at], at))]
    return sorted(scores)
"""

WRONG = (
    STUB,
    # The attention on what is gone is not dealt out.
    SOLUTION.replace("row[at] / total", "row[at]"),
    # Nobody is protected.
    SOLUTION.replace("[at for at in scores if at <= token - recent]", "list(scores)"),
    # One too few are protected.
    SOLUTION.replace("<= token - recent", "<= token - recent + 1"),
    # The score is the last attention, not the sum.
    SOLUTION.replace("scores[at] +=", "scores[at] ="),
    # Keeps the least looked at.
    SOLUTION.replace("min(older", "max(older"),
)

UNIFORM = [[1 / n] * n for n in range(1, 9)]
CASES = (
    (
        ([[1], [0.1, 0.9], [0.1, 0.8, 0.1], [0.1, 0.7, 0.1, 0.1]], 2, 1),
        [1, 3],
        "token 1 is the hit",
    ),
    (([[1], [0.5, 0.5]], 4, 1), [0, 1], "there is room for both"),
    ((UNIFORM, 4, 1), [0, 1, 2, 7], "who looks at all alike favours the old"),
    ((UNIFORM, 4, 3), [0, 5, 6, 7], "three newest, and one old"),
    ((UNIFORM, 3, 3), [5, 6, 7], "newest only: a window"),
    (
        (
            [
                [1],
                [0.9, 0.1],
                [0.9, 0.05, 0.05],
                [0.8, 0.1, 0.05, 0.05],
                [0.2, 0.0, 0.7, 0.05, 0.05],
            ],
            3,
            2,
        ),
        [0, 3, 4],
        "token 2 is looked at by token 4, which comes when both 1 and then 2 had to go",
    ),
    (
        (
            [[1], [0.6, 0.4], [0.1, 0.3, 0.6], [0.8, 0.0, 0.19, 0.01], [0.9, 0, 0.05, 0.03, 0.02]],
            2,
            1,
        ),
        [0, 4],
        "a token's sum counts from its own first step on",
    ),
    (
        (
            [
                [1],
                [0.1, 0.9],
                [0.1, 0.2, 0.7],
                [0.1, 0.1, 0.6, 0.2],
                [0, 0, 0.1, 0.1, 0.8],
            ],
            2,
            1,
        ),
        [2, 4],
        "at token 3, the 0.1 for the token that is gone is dealt out, most of it to token 2",
    ),
)


def check(answer):
    for (rows, budget, recent), expected, why in CASES:
        got = answer([list(row) for row in rows], budget, recent)
        if got != expected:
            return (
                f"held({rows}, budget={budget}, recent={recent}) should be {expected}"
                f" ({why}), but yours gave {got!r}."
            )
    return None
