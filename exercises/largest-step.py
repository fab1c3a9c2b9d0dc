"""The largest step that leaves room for a promised number of sequences."""

TASK = """
A larger step prefills faster and holds more while it runs; the cache gets what is left. Of
`room_bytes` (the share, without the weights and what else is fixed) a step of `T` tokens takes `T`
times `activation_bytes`. **Return the largest `T` with which `num_seqs` sequences of `context`
tokens still fit into whole blocks.**

- a sequence takes whole blocks of `block_size` tokens, each token `token_bytes` bytes;
- 0 where no step of at least one token does.
"""

STUB = """
def largest_step(room_bytes, activation_bytes, token_bytes, block_size,
                 context, num_seqs):
    ...
"""

SOLUTION = """
def largest_step(room_bytes, activation_bytes, token_bytes, block_size,
                 context, num_seqs):
    blocks = num_seqs * -(-context // block_size)
    left = room_bytes - blocks * block_size * token_bytes
    return max(0, left // activation_bytes)
"""

_HEAD = "def largest_step(room, activation, token, size, context, seqs):\n"
WRONG = (
    # Sequences do not share a block: each has its own last one.
    _HEAD + "    blocks = -(-seqs * context // size)\n"
    "    return max(0, (room - blocks * size * token) // activation)\n",
    # Tokens, not blocks.
    _HEAD + "    return max(0, (room - seqs * context * token) // activation)\n",
    # A negative step.
    _HEAD + "    blocks = seqs * -(-context // size)\n"
    "    return (room - blocks * size * token) // activation\n",
    # One too many.
    _HEAD + "    blocks = seqs * -(-context // size)\n"
    "    return max(0, -(-(room - blocks * size * token) // activation))\n",
    STUB,
)

CASES = (
    ((1000, 10, 1, 10, 25, 20), 40, "20 sequences of 3 blocks take 600 of 1,000 bytes"),
    ((1009, 10, 1, 10, 25, 20), 40, "9 bytes are not a token more"),
    ((600, 10, 1, 10, 25, 20), 0, "the sequences take all of it"),
    ((500, 10, 1, 10, 25, 20), 0, "the sequences do not fit, even without a step"),
    ((10**9, 110_592, 131_072, 16, 33, 3), 8871, "3 sequences of 3 blocks, not 7 blocks for all"),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            return f"largest_step{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
