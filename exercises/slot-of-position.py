"""From a position to a slot, through a block table."""

TASK = """
A sequence holds `num_tokens` tokens in blocks of `block_size`; `block_table` lists its blocks in
logical order. **Return the physical slot of a position**, or `None` if the sequence has no token
there.

- slots are numbered through the whole memory: block 0 first, then block 1, and so on;
- the last block may be half empty: what lies behind the last token is no token;
- a negative position is none, whatever Python makes of negative indices.
"""

STUB = """
def slot_of_position(position, block_table, block_size, num_tokens):
    ...
"""

SOLUTION = """
def slot_of_position(position, block_table, block_size, num_tokens):
    if not 0 <= position < num_tokens:
        return None
    block, offset = divmod(position, block_size)
    return block_table[block] * block_size + offset
"""

WRONG = (
    # Takes the logical block for the physical one.
    SOLUTION.replace("block_table[block]", "block"),
    # Forgets the offset.
    SOLUTION.replace(" + offset", ""),
    # Mixes up the two halves of the division.
    SOLUTION.replace("block, offset =", "offset, block ="),
    # Adds the offset to the block's number.
    SOLUTION.replace("block_table[block] * block_size", "block_table[block]"),
    # Reads the free part of the last block.
    SOLUTION.replace("position < num_tokens", "position < len(block_table) * block_size"),
    # Lets Python count from the end.
    SOLUTION.replace("not 0 <= position < num_tokens", "position >= num_tokens"),
    # Goes round: the page ring.
    SOLUTION.replace("divmod(position,", "divmod(position % num_tokens,").replace(
        "not 0 <= position < num_tokens", "not num_tokens"
    ),
    STUB,
)

CASES = (
    ((6, [5, 2, 7], 4, 10), 10, "the third token of the second block, which is block 2"),
    ((0, [5, 2, 7], 4, 10), 20, "the first token of block 5"),
    ((3, [5, 2, 7], 4, 10), 23, "the last token of block 5"),
    ((4, [5, 2, 7], 4, 10), 8, "the next position is in another block"),
    ((9, [5, 2, 7], 4, 10), 29, "the newest token"),
    ((10, [5, 2, 7], 4, 10), None, "held by the last block, but there is no token yet"),
    ((12, [5, 2, 7], 4, 10), None, "behind the last block"),
    ((-1, [5, 2, 7], 4, 10), None, "before the first token"),
    ((2, [9, 0, 4], 1, 3), 4, "blocks of a single token"),
    ((17, [1, 0], 16, 20), 1, "the second token of block 0"),
    ((0, [], 4, 0), None, "an empty sequence"),
)


def check(answer):
    for (position, table, size, num_tokens), expected, why in CASES:
        got = answer(position, list(table), size, num_tokens)
        if got != expected or isinstance(got, bool):
            return (
                f"slot_of_position({position}, {table}, {size}, {num_tokens}) should be "
                f"{expected} ({why}), but yours gave {got!r}."
            )
    return None
