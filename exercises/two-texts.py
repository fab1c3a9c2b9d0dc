"""Why a test for equal tokens must fail: two texts that a lossy cache cannot tell apart."""

TASK = """
A cache keeps, of a text of `n` tokens, those at the positions `held(n)`; what it has given up once
does not come back. Its *state* is the positions it holds and the tokens there. **Return two texts,
two lists of `num_tokens` token ids, that differ and leave the same state**: whatever is asked
then, the cache answers the same for both, and one of the answers may have to be wrong. Return
`None` if there are no such texts: then the cache may be tested for equal tokens.

`held(n)` always holds the newest token, `n - 1`, and nothing at `n` or beyond.
"""

STUB = """
def two_texts(held, num_tokens):
    text = list(range(num_tokens))
    return text, [99] + text[1:]
"""

SOLUTION = """
def two_texts(held, num_tokens):
    alive = set()
    for n in range(1, num_tokens + 1):
        alive = {at for at in held(n) if at in alive or at == n - 1}
    gone = [at for at in range(num_tokens) if at not in alive]
    if not gone:
        return None
    text = [0] * num_tokens
    other = list(text)
    other[gone[0]] = 1
    return text, other
"""

WRONG = (
    STUB,
    # Looks at the end alone: a position that the rule names again has come back from the dead.
    SOLUTION.replace("{at for at in held(n) if at in alive or at == n - 1}", "set(held(n))"),
    # Changes a token that is held.
    SOLUTION.replace("if at not in alive]", "if at in alive]"),
    # Never says that a cache is exact.
    SOLUTION.replace("return None", "gone = [0]"),
    # Two texts that are one.
    SOLUTION.replace("other[gone[0]] = 1", "pass"),
    # Gives up without looking.
    "def two_texts(held, num_tokens):\n    return None\n",
)


def window(n):
    return range(max(0, n - 4), n)


def sinks(n):
    return sorted({*range(min(2, n)), *range(max(0, n - 3), n)})


def every_other_old(n):
    return [at for at in range(n) if at % 2 == 0 or at == n - 1]


def whole(n):
    return range(n)


def comes_back(n):
    return range(n) if n != 5 else [0, 1, 4]


RULES = (
    (window, 9, True),
    (window, 4, False),
    (sinks, 8, True),
    (sinks, 5, False),
    (every_other_old, 6, True),
    (every_other_old, 2, False),
    (whole, 12, False),
    (comes_back, 7, True),
    (comes_back, 4, False),
)


def state(held, text):
    kept = {}
    for n, token in enumerate(text, start=1):
        kept[n - 1] = token
        kept = {at: kept[at] for at in held(n) if at in kept}
    return kept


def check(answer):
    for held, num_tokens, lossy in RULES:
        name = f"two_texts({held.__name__}, {num_tokens})"
        got = answer(held, num_tokens)
        if not lossy:
            if got is not None:
                return f"{name} should be None, since nothing is gone by then; yours gave {got!r}."
            continue
        if got is None:
            return f"{name} should be two texts, as some tokens are gone by then; yours gave None."
        texts = [list(text) for text in got]
        if len(texts) != 2 or any(len(text) != num_tokens for text in texts):
            return f"{name} should be two lists of {num_tokens} tokens, yours gave {got!r}."
        if texts[0] == texts[1]:
            return f"{name} should be two texts that differ, yours gave {texts[0]} twice."
        mine, other = (state(held, text) for text in texts)
        if mine != other:
            return f"{name} should be two texts with one state; yours leave {mine} and {other}."
    return None
