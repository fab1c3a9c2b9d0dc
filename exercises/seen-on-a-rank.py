"""How many of a rank's keys a query sees when blocks go round the ranks."""

TASK = """
Block `j` of a sequence lies on rank `j % num_ranks`; a rank stores its tokens of the sequence one
behind the other. A query at `position` sees every key up to its own position, itself included.
**Return how many of the keys on `rank` it sees.**

They are the first ones there, so this number is the rank's whole causal mask. It may be 0.
"""

STUB = """
def seen_on_rank(position, rank, num_ranks, block_size):
    return (position + 1) // num_ranks
"""

SOLUTION = """
def seen_on_rank(position, rank, num_ranks, block_size):
    rounds, rest = divmod(position + 1, num_ranks * block_size)
    here = rest - rank * block_size
    return rounds * block_size + max(0, min(here, block_size))
"""

WRONG = (
    STUB,
    # A mask that hides the query itself.
    SOLUTION.replace("position + 1", "position"),
    # Counts blocks the rank does not have.
    SOLUTION.replace("min(here, block_size)", "here"),
    # Tokens of ranks before it count as missing.
    SOLUTION.replace("max(0, min(here, block_size))", "min(here, block_size)"),
    # Cuts the sequence in runs, not in blocks that go round.
    SOLUTION.replace("rest - rank * block_size", "rest // num_ranks"),
    # Forgets the rounds.
    SOLUTION.replace("rounds * block_size + ", ""),
    # Deals single tokens round.
    SOLUTION.replace("num_ranks * block_size)", "num_ranks)")
    .replace("rank * block_size", "rank")
    .replace("rounds * block_size", "rounds")
    .replace("here, block_size", "here, 1"),
)


def _expected(position, rank, num_ranks, block_size):
    return sum(p // block_size % num_ranks == rank for p in range(position + 1))


CASES = (
    ((0, 0, 2, 4), "the first token sees itself"),
    ((0, 1, 2, 4), "the other rank has nothing yet"),
    ((3, 0, 2, 4), "the end of the first block"),
    ((4, 1, 2, 4), "the first token of the other rank sees itself there"),
    ((4, 0, 2, 4), "and the whole first block here"),
    ((9, 0, 2, 4), "a second block has begun on rank 0"),
    ((9, 1, 2, 4), "four of ten"),
    ((12, 0, 3, 4), "the first token of the second round"),
    ((100, 2, 3, 16), "some rounds later"),
    ((7, 3, 4, 2), "the last rank's last token of the first round"),
    ((6, 1, 3, 1), "blocks of one token"),
    ((5, 0, 1, 4), "one rank has all"),
)


def check(answer):
    for args, why in CASES:
        expected, got = _expected(*args), answer(*args)
        if got != expected or isinstance(got, (bool, float)):
            return f"seen_on_rank{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
