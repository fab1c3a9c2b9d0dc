"""How many tokens must pass the model at least, however good the prefix cache."""

TASK = """
An engine answered some requests. `texts` are the token ids that had to pass the model for each:
its prompt, and its answer without the last token. Where two texts begin alike, the common beginning
has to be computed **once**. A token that stands behind another beginning is another computation.
**Return the fewest tokens that must have passed the model.**
"""

STUB = """
def least(texts):
    return sum(len(text) for text in texts)
"""

SOLUTION = """
def least(texts):
    return len({
        tuple(text[:end])
        for text in texts
        for end in range(1, len(text) + 1)
    })
"""

WRONG = (
    STUB,
    # Counts distinct tokens, wherever they stand.
    "def least(texts):\n    return len({token for text in texts for token in text})\n",
    # Counts distinct tokens at each place, whatever stands before them.
    "def least(texts):\n    return len({(i, t) for text in texts for i, t in enumerate(text)})\n",
    # Counts equal texts once, and nothing else.
    "def least(texts):\n    return sum(map(len, {tuple(text) for text in texts}))\n",
    # Counts the empty beginning as well.
    SOLUTION.replace("range(1, len(text) + 1)", "range(len(text) + 1)"),
    # Forgets the last token.
    SOLUTION.replace("len(text) + 1", "len(text)"),
)

CASES = (
    ([[1, 2, 3]], "one text"),
    ([[1, 2, 3], [1, 2, 4]], "a common beginning of two"),
    ([[1, 2, 3], [1, 2, 3]], "the same text twice"),
    ([[1, 2, 3], [1, 2]], "one is the beginning of the other"),
    ([[1, 5, 5], [2, 5, 5]], "equal tokens behind another beginning"),
    ([[7, 7, 7, 7]], "the same token, each time behind another text"),
    ([[1, 2, 3], [1, 9, 3], [1, 2, 8]], "three texts, a tree"),
    ([], "no text"),
)


def _expected(texts):
    tree, count = {}, 0
    for text in texts:
        node = tree
        for token in text:
            count += token not in node
            node = node.setdefault(token, {})
    return count


def check(answer):
    for texts, why in CASES:
        expected = _expected(texts)
        got = answer([list(text) for text in texts])
        if got != expected:
            return f"least({texts}) should be {expected} ({why}), but yours gave {got!r}."
    return None
