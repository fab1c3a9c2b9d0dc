"""Which share of the pool an engine prints as used, from the blocks that requests hold."""

TASK = """
A pool has `num_blocks` blocks. **Return the usage that vLLM and SGLang print**, in percent, rounded
to one digit: the share of blocks that at least one running request holds.

- `running` is a list with the block ids of each running request; requests that begin alike hold
  the same blocks;
- `kept` are the block ids whose tokens the prefix index still knows. Some of them are held by
  running requests as well; the others wait for somebody who wants them again, or who takes them.
"""

STUB = """
def printed_usage(num_blocks, running, kept):
    ...
"""

SOLUTION = """
def printed_usage(num_blocks, running, kept):
    held = {block for blocks in running for block in blocks}
    return round(100 * len(held) / num_blocks, 1)
"""

WRONG = (
    STUB,
    # Counts a shared block once for each request.
    SOLUTION.replace("{block for", "[block for").replace("in blocks}", "in blocks]"),
    # Counts what is only kept.
    SOLUTION.replace("    return", "    held |= set(kept)\n    return"),
    # Leaves out what is held and known to the index.
    SOLUTION.replace("    return", "    held -= set(kept)\n    return"),
    # Counts requests.
    SOLUTION.replace("len(held)", "len(running)"),
    # A share, not percent.
    SOLUTION.replace("100 * ", ""),
    # What is left, not what is used.
    SOLUTION.replace("100 * len(held)", "100 * (num_blocks - len(held))"),
)

CASES = (
    ((8, [[0, 1, 2]], []), "three of eight blocks are held"),
    ((8, [], [0, 1, 2, 3]), "nobody runs, four blocks are kept"),
    ((8, [[0, 1, 2], [0, 1, 3]], [0, 1]), "two blocks are shared: four are held"),
    ((8, [[4, 5]], [4, 0, 1, 2, 3]), "one block is held and kept, four are kept only"),
    ((30, [[0], [0], [0]], [0]), "three requests on one block"),
    ((4, [[0, 1], [2, 3]], [0, 1, 2, 3]), "all are held"),
)


def check(answer):
    for (num_blocks, running, kept), why in CASES:
        held = {block for blocks in running for block in blocks}
        expected = round(100 * len(held) / num_blocks, 1)
        got = answer(num_blocks, [list(blocks) for blocks in running], list(kept))
        if got != expected:
            return (
                f"printed_usage({num_blocks}, {running}, {kept}) should be {expected} ({why}), "
                f"but yours gave {got!r}."
            )
    return None
