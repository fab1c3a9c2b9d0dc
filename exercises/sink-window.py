"""Which tokens a window keeps that never gives up the first ones."""

TASK = """
A cache has room for `budget` tokens and never gives up the first `num_sinks` of them; of all
others it keeps the most recent. **Return the positions it holds after `num_tokens` tokens were
read**, as a list in rising order.

- it holds as many tokens as it may: the budget is full as soon as enough were read;
- the newest token is always held, so `num_sinks` must be less than `budget`: raise `ValueError`
  otherwise;
- no position is held twice.
"""

STUB = """
def kept_tokens(num_tokens, budget, num_sinks):
    return list(range(num_tokens))[-budget:]
"""

SOLUTION = """
def kept_tokens(num_tokens, budget, num_sinks):
    if num_sinks >= budget:
        raise ValueError(
            f"{num_sinks} sinks leave no room for the newest in {budget}"
        )
    sinks = range(min(num_sinks, num_tokens))
    start = max(num_sinks, num_tokens - (budget - num_sinks))
    return [*sinks, *range(start, num_tokens)]
"""

WRONG = (
    # Sinks come on top of the budget.
    SOLUTION.replace("num_tokens - (budget - num_sinks)", "num_tokens - budget"),
    # A short text has its first tokens twice.
    SOLUTION.replace("max(num_sinks, num_tokens - (budget - num_sinks))", "-1 + 1"),
    # Sinks that were never read.
    SOLUTION.replace("range(min(num_sinks, num_tokens))", "range(num_sinks)"),
    # Lets the sinks push out the newest.
    SOLUTION.replace("num_sinks >= budget", "num_sinks > budget"),
    STUB,
)

CASES = (
    ((10, 6, 4), [0, 1, 2, 3, 8, 9], "four sinks and the last two"),
    ((6, 6, 4), [0, 1, 2, 3, 4, 5], "the budget is just full"),
    ((7, 6, 4), [0, 1, 2, 3, 5, 6], "token 4 is the first to go"),
    ((3, 6, 4), [0, 1, 2], "only three tokens were read"),
    ((0, 6, 4), [], "nothing was read"),
    ((5, 6, 4), [0, 1, 2, 3, 4], "room is left"),
    ((9, 3, 0), [6, 7, 8], "without sinks a plain window"),
    ((9, 2, 1), [0, 8], "one sink and the newest"),
)
REFUSED = ((9, 4, 4), (9, 3, 4), (0, 1, 1))


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            return f"kept_tokens{args} should be {expected} ({why}), but yours gave {got!r}."
    for args in REFUSED:
        try:
            got = answer(*args)
        except ValueError:
            continue
        return f"kept_tokens{args} should be refused with a ValueError, but yours gave {got!r}."
    return None
