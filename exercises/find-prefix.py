"""Which blocks a prompt finds: the longest known beginning, and a token left to compute."""

TASK = """
**Return the ids of the blocks that a prompt may reuse, in order.**

- `tokens` is the prompt, a list of token ids; blocks hold `size` tokens;
- `known` names each cached block by the tuple of *all* tokens from the start of a prompt to the end
  of that block (a chain without a hash), and gives its block id;
- only a run of blocks from the first one on can be reused;
- at least one token of the prompt must be left to compute.
"""

STUB = """
def find(tokens, size, known):
    ends = range(size, len(tokens) + 1, size)
    return [known[tuple(tokens[:end])] for end in ends]
"""

SOLUTION = """
def find(tokens, size, known):
    found = []
    for end in range(size, len(tokens), size):
        block_id = known.get(tuple(tokens[:end]))
        if block_id is None:
            break
        found.append(block_id)
    return found
"""

WRONG = (
    # A full hit leaves nothing to compute.
    SOLUTION.replace("len(tokens), size", "len(tokens) + 1, size"),
    # Keeps back a whole block, not a token.
    SOLUTION.replace("len(tokens), size", "len(tokens) - size + 1, size"),
    # Goes on behind a gap.
    SOLUTION.replace("break", "continue"),
    # Block 0 is an id like any other.
    SOLUTION.replace("block_id is None", "not block_id"),
    # Names a block by its own tokens.
    SOLUTION.replace("tokens[:end]", "tokens[end - size:end]"),
    # The logical numbers are not the blocks' ids.
    SOLUTION.replace("append(block_id)", "append(len(found))"),
    # Sorted ids are not in the order of the tokens.
    SOLUTION.replace("return found", "return sorted(found)"),
)

_CACHED = (list(range(12)), [*range(8), 50, 51, 52, 53, 54])


def _known(size, gap=None):
    ends = {tuple(t[:end]) for t in _CACHED for end in range(size, len(t) + 1, size)}
    ordered = sorted(ends, key=lambda prefix: (-len(prefix), prefix))
    return {prefix: i for i, prefix in enumerate(ordered) if len(prefix) != gap}


CASES = (
    (list(range(13)), 4, _known(4)),
    (list(range(12)), 4, _known(4)),
    (list(range(9)), 4, _known(4)),
    (list(range(8)), 4, _known(4)),
    ([*range(6), 7, 7, 8, 9], 4, _known(4)),
    ([*range(8), 50, 51, 52, 53, 1], 4, _known(4)),
    (list(range(13)), 4, _known(4, gap=8)),
    (list(range(4, 13)), 4, _known(4)),
    (list(range(3)), 4, _known(4)),
    ([0], 1, _known(1)),
    ([0, 1, 9], 1, _known(1)),
)


def _expected(tokens, size, known):
    most = (len(tokens) - 1) // size
    prefixes = [tuple(tokens[: size * (i + 1)]) for i in range(most)]
    run = next((i for i, prefix in enumerate(prefixes) if prefix not in known), most)
    return [known[prefix] for prefix in prefixes[:run]]


def check(answer):
    for tokens, size, known in CASES:
        got, expected = answer(list(tokens), size, dict(known)), _expected(tokens, size, known)
        if got != expected:
            return (
                f"find({tokens}, {size}, known) should return {expected}, but yours gave {got!r},"
                f" where known has the lengths {sorted({len(prefix) for prefix in known})}."
            )
    return None
