"""Which keys each query may see, when the queries are the last tokens of the context."""

TASK = """
The queries are the **last** `num_queries` tokens of a context of `context_len` tokens; the tokens
before them are cached. **Return who sees whom**: a list of rows, one for each query, each a list of
`context_len` times True or False. As it stands the function is right for a prompt on an empty cache
and for nothing else. **Repair it.**

- a query sees itself and everything before it, cached or new, and nothing after it;
- with a `window`, it sees at most that many keys, itself included; None means no window.
"""

STUB = """
def causal_mask(num_queries, context_len, window=None):
    rows = []
    for query in range(num_queries):
        rows.append([key <= query for key in range(context_len)])
    return rows
"""

SOLUTION = """
def causal_mask(num_queries, context_len, window=None):
    rows = []
    for position in range(context_len - num_queries, context_len):
        first = 0 if window is None else position - window + 1
        rows.append([first <= key <= position for key in range(context_len)])
    return rows
"""

WRONG = (
    # Aligned to the upper left.
    STUB,
    # The window, on a mask aligned to the upper left.
    SOLUTION.replace("range(context_len - num_queries, context_len)", "range(num_queries)"),
    # The window does not count the query itself.
    SOLUTION.replace("position - window + 1", "position - window"),
    # No window.
    SOLUTION.replace("0 if window is None else position - window + 1", "0"),
    # A query does not see itself.
    SOLUTION.replace("key <= position", "key < position"),
    # It sees one token too many.
    SOLUTION.replace("key <= position", "key <= position + 1"),
    # It sees everything: no mask.
    SOLUTION.replace("first <= key <= position", "first <= key"),
    # A window of None taken for a window of the new tokens only.
    SOLUTION.replace("0 if window is None", "context_len - num_queries if window is None"),
)

# A row as text, 1 for a key that is seen.
CASES = (
    ((3, 3, None), ("100", "110", "111"), "a prompt on an empty cache"),
    ((2, 6, None), ("111110", "111111"), "two new tokens on four cached ones"),
    ((1, 5, None), ("11111",), "a decode step: one query, and all keys"),
    ((2, 4, 2), ("0110", "0011"), "a window of two counts the query itself"),
    ((1, 4, 1), ("0001",), "a window of one is the query itself"),
    ((3, 4, 9), ("1100", "1110", "1111"), "a window longer than the context hides nothing"),
    ((0, 3, None), (), "no queries, no rows"),
)


def _text(rows):
    return tuple("".join("1" if seen else "0" for seen in row) for row in rows)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        drawn = isinstance(got, (list, tuple)) and all(isinstance(r, (list, tuple)) for r in got)
        shown = _text(got) if drawn else got
        if shown != expected:
            return (
                f"causal_mask{args} should be {list(expected)} ({why}; 1 is True), but yours gave "
                f"{list(shown) if drawn else shown!r}."
            )
    return None
