"""From which context on reading few blocks reads less."""

TASK = """
A decode query that chooses its blocks reads, counted in one token's keys and values of one layer:

- the extremes of all its blocks, one for each block;
- the chosen blocks: `k` of them, whole but for the last, which has only the tokens that are in it;
- nothing else: what the upkeep of the extremes reads is left out.

A query whose sequence has at most `k` blocks reads everything and looks at no extremes.

**Return the smallest context, in tokens, from which on a query always reads fewer bytes than one
that reads everything**, for blocks of `size` tokens. From there on it must hold for every longer
context too. Where it never does, return `None`.
"""

STUB = """
def pays_from(size, k):
    return k * size
"""

SOLUTION = """
def pays_from(size, k):
    if size == 1:
        return None
    # What is skipped is whole blocks; what is looked at, one for each block.
    blocks = k + 1
    while (blocks - k) * size <= blocks:
        blocks += 1
    return (blocks - 1) * size + 1
"""

WRONG = (
    STUB,
    # Forgets the extremes.
    SOLUTION.replace("<= blocks", "<= 0"),
    # Equal is not fewer.
    SOLUTION.replace("<= blocks", "< blocks"),
    # The context that fills the last block, not the one that begins it.
    SOLUTION.replace("(blocks - 1) * size + 1", "blocks * size"),
    # Extremes of the chosen blocks only.
    SOLUTION.replace("<= blocks:", "<= k:"),
    # One block of one token is as long as its extremes: never ends, or never pays.
    SOLUTION.replace("    if size == 1:\n        return None\n", "    size = max(size, 2)\n"),
)


def read_by_choice(context, size, k):
    blocks = -(-context // size)
    if blocks <= k:
        return context
    return context - (blocks - k) * size + blocks


def _right(size, k):
    if size == 1:
        return None
    far = 4 * (k + 2) * size
    worse = [n for n in range(1, far) if read_by_choice(n, size, k) >= n]
    return worse[-1] + 1


CASES = ((16, 8), (16, 1), (4, 8), (2, 4), (2, 1), (1, 3), (8, 64), (3, 5), (64, 2), (5, 4))


def check(answer):
    for size, k in CASES:
        got, expected = answer(size, k), _right(size, k)
        if got != expected:
            return f"pays_from({size}, {k}) should be {expected}, but yours gave {got!r}."
    return None
