"""Bytes of a sequence whose layers, full and windowed, take blocks of equal bytes from one pool."""

TASK = """
A model has `full` layers that keep every token and `local` layers that need the last `window`
tokens. Both take blocks from one pool, so all blocks have equal bytes: one holds `block_size`
tokens of `group` layers, at `row_bytes` for a token in a layer. **Return the bytes a sequence of
`num_tokens` holds.**

- layers of one kind are put into groups of `group`; the last group of a kind is filled up with
  layers that do not exist;
- a group of full layers has a block for every `block_size` positions, the last perhaps not full;
- a group of local layers has only those of these blocks that hold one of the last `window`
  positions.
"""

STUB = """
def sequence_bytes(full, local, window, num_tokens, block_size,
                   group, row_bytes):
    rows = full * num_tokens + local * min(num_tokens, window)
    return rows * row_bytes
"""

SOLUTION = """
def sequence_bytes(full, local, window, num_tokens, block_size, group,
                   row_bytes):
    every = -(-num_tokens // block_size)
    recent = every - max(0, num_tokens - window) // block_size
    blocks = -(-full // group) * every + -(-local // group) * recent
    return blocks * group * block_size * row_bytes
"""

WRONG = (
    STUB,
    # Whole blocks, but no layers that fill up a group.
    SOLUTION.replace("-(-full // group)", "full")
    .replace("-(-local // group)", "local")
    .replace("blocks * group", "blocks"),
    # Groups rounded down: the layers that are left over keep nothing.
    SOLUTION.replace("-(-local // group)", "(local // group)"),
    # The window in whole blocks, as if it began at the edge of one.
    SOLUTION.replace(
        "every - max(0, num_tokens - window) // block_size",
        "-(-min(num_tokens, window) // block_size)",
    ),
    # A window one token too short: it counts the newest token itself.
    SOLUTION.replace("num_tokens - window", "num_tokens - window + 1"),
    # A window one token too long.
    SOLUTION.replace("num_tokens - window", "num_tokens - window - 1"),
    # One table for all layers: the local ones keep every token.
    SOLUTION.replace("* recent", "* every"),
    # A block holds one layer.
    SOLUTION.replace("blocks * group", "blocks"),
    # Full and local layers mixed in one group.
    SOLUTION.replace(
        "-(-full // group) * every + -(-local // group) * recent",
        "-(-(full + local) // group) * every",
    ),
)

CASES = (
    ((10, 20, 32, 112, 16, 10, 1), 11 * 160, "7 blocks and two times 2, of 10 layers each"),
    ((1, 1, 4, 10, 4, 1, 2), 40, "10 tokens in 3 blocks; the last 4 lie in 2 of them"),
    ((1, 1, 4, 11, 4, 1, 2), 40, "the last 4 of 11 tokens begin with the last slot of a block"),
    ((1, 1, 4, 12, 4, 1, 2), 32, "the last 4 of 12 tokens lie in one block"),
    ((1, 1, 8, 3, 4, 1, 2), 16, "fewer tokens than the window"),
    ((2, 5, 4, 8, 4, 2, 1), 40, "3 groups of local layers, the last one half empty"),
    ((10, 52, 1024, 131072, 16, 10, 8192), 11_240_734_720, "Gemma-3-27B at 128K"),
    ((3, 1, 4, 8, 4, 2, 1), 40, "two groups of full layers, one of them half empty"),
)


def check(answer):
    for arguments, expected, why in CASES:
        got = answer(*arguments)
        if got != expected:
            return (
                f"sequence_bytes{arguments} should be {expected} ({why}), but yours gave {got!r}."
            )
    return None
