"""The share of blocks that several answers to one prompt save."""

TASK = """
A prompt of `prompt` tokens gets `n` answers of `output` tokens each. The answers share the blocks
of the prompt, `block_size` tokens each; a block that the prompt does not fill is copied when an
answer writes into it, so that in the end each answer has its own. Each answer has at least one
token. **Return the share of blocks saved**, from 0 to 1: blocks that sharing makes unnecessary,
over blocks without sharing, when all answers are complete.
"""

STUB = """
def saved_share(prompt, output, n, block_size):
    ...
"""

SOLUTION = """
def saved_share(prompt, output, n, block_size):
    whole = prompt // block_size
    each = -(-(prompt + output) // block_size)
    return (n - 1) * whole / (n * each)
"""

WRONG = (
    # Shares the block that is not full, too.
    SOLUTION.replace("prompt // block_size", "-(-prompt // block_size)"),
    # Counts tokens, not blocks.
    SOLUTION.replace("prompt // block_size", "prompt").replace(
        "-(-(prompt + output) // block_size)", "prompt + output"
    ),
    # Forgets that the first answer needs the prompt's blocks.
    SOLUTION.replace("(n - 1) * whole", "n * whole"),
    # Compares with the blocks of one answer.
    SOLUTION.replace("(n * each)", "each"),
    # Drops the last block, which is not full.
    SOLUTION.replace("-(-(prompt + output) // block_size)", "(prompt + output) // block_size"),
    # Rounds prompt and answer up one by one.
    SOLUTION.replace(
        "-(-(prompt + output) // block_size)",
        "-(-prompt // block_size) + -(-output // block_size)",
    ),
    STUB,
)

CASES = (
    ((4, 4, 2, 4), 0.25, "two blocks each; of four, one is shared"),
    ((4, 4, 1, 4), 0.0, "one answer shares with nobody"),
    ((3, 9, 2, 4), 0.0, "the prompt fills no block"),
    ((19, 58, 2, 16), 0.1, "one full block of prompt; five blocks each, ten in all"),
    ((19, 58, 6, 16), 5 / 30, "five of thirty"),
    ((5, 3, 3, 4), 2 / 6, "two blocks each, the first one shared by three"),
    ((100, 50, 4, 1), 0.5, "blocks of one token: 300 of 600"),
    ((161, 338, 2, 16), 10 / 64, "ten full blocks of 32"),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if not isinstance(got, (int, float)) or not abs(got - expected) <= 1e-9:
            shown = f"saved_share{args} should be {expected:.6g} ({why})"
            return f"{shown}, but yours gave {got!r}."
    return None
