"""Which blocks of a prompt carry a tenant's salt, and which may be shared with everybody."""

TASK = """
A server keeps a list of `public` texts, such as its system prompts: lists of token ids that
everybody may know. All else is a tenant's own. **Return for every whole block of a prompt what goes
into its key as salt**: `""` where the block may be shared with everybody, else the tenant's `salt`.

- a block may be shared if *all* tokens from the first of the prompt to the last of the block are
  the beginning of one public text;
- a block that is not full has no key.
"""

STUB = """
def salts(tokens, block_size, salt, public):
    return [salt for _ in range(len(tokens) // block_size)]
"""

SOLUTION = """
def salts(tokens, block_size, salt, public):
    found = []
    for end in range(block_size, len(tokens) + 1, block_size):
        known = any(list(text[:end]) == list(tokens[:end]) for text in public)
        found.append("" if known else salt)
    return found
"""

WRONG = (
    STUB,
    # Everything shared.
    STUB.replace("[salt for", '["" for'),
    # Only the block's own tokens are looked at, not what stands before it.
    SOLUTION.replace(
        "list(text[:end]) == list(tokens[:end])",
        "list(text[end - block_size : end]) == list(tokens[end - block_size : end])",
    ),
    # A block whose beginning is public is shared whole.
    SOLUTION.replace(
        "list(text[:end]) == list(tokens[:end])",
        "len(text) > end - block_size and list(text[:end]) == list(tokens[:end])[:len(text)]",
    ),
    # Only a public text that the prompt contains whole counts.
    SOLUTION.replace(
        "list(text[:end]) == list(tokens[:end])",
        "list(tokens[:len(text)]) == list(text) and len(text) >= end",
    ),
    # Only the first public text counts.
    SOLUTION.replace("in public)", "in public[:1])"),
    # A key for the last block, which is not full.
    SOLUTION.replace("len(tokens) + 1, block_size", "len(tokens) + block_size, block_size"),
)

SYSTEM, OTHER = [1, 2, 3, 4, 5, 6], [9, 9, 9, 9]
CASES = (
    (([1, 2, 3, 4, 5, 6, 7, 8, 9], 2, "a", [SYSTEM]), ["", "", "", "a"], "6 public tokens"),
    (([1, 2, 3, 4, 5, 6, 7, 8], 4, "a", [SYSTEM]), ["", "a"], "the second block is half public"),
    (([1, 2, 8, 8, 5, 6], 2, "a", [SYSTEM]), ["", "a", "a"], "5, 6 stand behind a tenant's tokens"),
    (([9, 9, 9, 9, 1], 2, "b", [SYSTEM, OTHER]), ["", ""], "the second public text"),
    (([1, 2, 9, 9], 2, "b", [SYSTEM, OTHER]), ["", "b"], "public texts do not mix"),
    (([5, 6, 1, 2], 2, "a", [SYSTEM]), ["a", "a"], "public tokens, but not from the beginning"),
    (([1, 2, 3], 4, "a", [SYSTEM]), [], "no whole block"),
    (([1, 2, 3, 4], 2, "a", []), ["a", "a"], "nothing is public"),
)


def check(answer):
    for arguments, expected, why in CASES:
        got = answer(*arguments)
        if list(got) != expected:
            return f"salts{arguments} should be {expected} ({why}), but yours gave {got!r}."
    return None
