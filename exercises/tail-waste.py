"""Slots that stay empty in last blocks: counted, and by the rule."""

TASK = """
Sequences of the given `lengths` lie in blocks of `block_size` tokens. **Return `(counted,
expected)`**: the slots of their blocks that hold no token, and what the rule predicts for as many
sequences if every filling of a last block, from one token to all, is equally likely.

- a sequence of 0 tokens holds no block; the rule does not know that, it counts sequences.
"""

STUB = """
def tail_waste(lengths, block_size):
    counted = sum(block_size - n % block_size for n in lengths)
    expected = len(lengths) * block_size / 2
    return counted, expected
"""

SOLUTION = """
def tail_waste(lengths, block_size):
    blocks = [-(-n // block_size) for n in lengths]
    counted = sum(blocks) * block_size - sum(lengths)
    expected = len(lengths) * (block_size - 1) / 2
    return counted, expected
"""

WRONG = (
    STUB,
    # Half a block, as if a last block could be empty.
    SOLUTION.replace("(block_size - 1) / 2", "block_size / 2"),
    # A whole block more where the last one is just full.
    SOLUTION.replace("-(-n // block_size)", "n // block_size + 1"),
    # Whole blocks only: the tail has no room.
    SOLUTION.replace("-(-n // block_size)", "n // block_size"),
    # All sequences end to end, with one tail for all.
    "def tail_waste(lengths, block_size):\n"
    "    return -sum(lengths) % block_size, (block_size - 1) / 2\n",
    # Rounds the rule down.
    SOLUTION.replace("(block_size - 1) / 2", "(block_size - 1) // 2"),
)

CASES = (
    (([5, 9, 12], 4), (6, 4.5), "3, 3 and 0 slots empty"),
    (([8, 16], 8), (0, 7.0), "full blocks leave nothing empty"),
    (([1, 2, 3], 1), (0, 0.0), "blocks of one are full"),
    (([3], 256), (253, 127.5), "one short sequence in a large block"),
    (([0, 7], 4), (1, 3.0), "a sequence without tokens holds no block"),
    (([1, 2, 3, 4], 4), (6, 6.0), "every filling once: the rule is exact"),
    (([], 16), (0, 0.0), "no sequence"),
)


def check(answer):
    for (lengths, block_size), expected, why in CASES:
        got = answer(list(lengths), block_size)
        if not isinstance(got, (tuple, list)) or tuple(got) != expected:
            return (
                f"tail_waste({lengths}, {block_size}) should be {expected} ({why}), "
                f"but yours gave {got!r}."
            )
    return None
