"""How many blocks come free when every head gives up tokens of its own choice."""

TASK = """
A text of `num_tokens` tokens lies in blocks of `block_size`, all heads of a token in one slot.
`kept[h]` lists the positions that head `h` keeps. **Return two numbers**: how many blocks are free

- if nothing is moved: a block is free when *no* head keeps any of its tokens;
- if each head moves what it keeps to the front, so that all heads fill the same first slots: as
  many slots are needed as the head with most tokens keeps.
"""

STUB = """
def freed(kept, num_tokens, block_size):
    share = 1 - len(kept[0]) / num_tokens
    blocks = -(-num_tokens // block_size)
    return int(share * blocks), int(share * blocks)
"""

SOLUTION = """
def freed(kept, num_tokens, block_size):
    blocks = -(-num_tokens // block_size)
    used = {at // block_size for head in kept for at in head}
    longest = max(len(head) for head in kept)
    return blocks - len(used), blocks - -(-longest // block_size)
"""

WRONG = (
    STUB,
    # Looks at one head only.
    SOLUTION.replace("for head in kept for at in head}", "for at in kept[0]}"),
    # Forgets that the last block may be half full.
    SOLUTION.replace("blocks = -(-num_tokens // block_size)", "blocks = num_tokens // block_size"),
    SOLUTION.replace("-(-longest // block_size)", "(longest // block_size)"),
    # Heads fill slots of their own.
    SOLUTION.replace("max(len(head) for head in kept)", "sum(len(head) for head in kept)"),
    # The shortest head cannot speak for the longest.
    SOLUTION.replace("max(len(head)", "min(len(head)"),
)

CASES = (
    (([[0, 1, 2, 3]], 16, 4), (3, 3)),
    (([[0, 5, 10, 15]], 16, 4), (0, 3)),
    (([[0, 1, 2, 3], [4, 5, 6, 7]], 16, 4), (2, 3)),
    (([[0, 4], [8, 12]], 16, 4), (0, 3)),
    (([[0, 1, 2], [0, 1, 2, 9]], 10, 4), (1, 2)),
    (([[8, 9], [8, 9]], 10, 4), (2, 2)),
    (([[0, 1, 2, 3, 4], [0, 4]], 9, 4), (1, 1)),
    (([list(range(12))], 12, 4), (0, 0)),
)


def check(answer):
    for args, expected in CASES:
        got = answer(*args)
        if tuple(got) != expected:
            return f"freed{args} should be {expected}, but yours gave {got!r}."
    return None
