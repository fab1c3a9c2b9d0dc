"""From which length on a step with a cache is worth it, in a simple model of time."""

TASK = """
A step over a text of `t` tokens, the newest included, takes so many microseconds:

- **without** a cache: `fixed`, and `per_token` for each of the `t` tokens forwarded, and `per_pair`
  for each of the causal pairs: 1 + 2 + ... + t of them;
- **with** a cache: `fixed`, and `bookkeeping`, and `per_token` for the one token forwarded, and
  `per_pair` for each of its `t` pairs.

**Return the smallest `t` (at least 1) at which the step without a cache takes at least `gain` times
as long as the step with one**, or `None` if there is none. All arguments are whole numbers; `gain`
is at least 2, `fixed` at least 1, the others may be 0.
"""

STUB = """
def pays_from(fixed, bookkeeping, per_token, per_pair, gain):
    ...
"""

SOLUTION = """
def pays_from(fixed, bookkeeping, per_token, per_pair, gain):
    if per_token == 0 and per_pair == 0:
        return None
    t = 1
    while True:
        without = fixed + per_token * t + per_pair * t * (t + 1) // 2
        cached = fixed + bookkeeping + per_token + per_pair * t
        if without >= gain * cached:
            return t
        t += 1
"""

WRONG = (
    # The whole square of pairs, as if nothing were masked.
    SOLUTION.replace("t * (t + 1) // 2", "t * t"),
    # One pair too few in each row.
    SOLUTION.replace("t * (t + 1) // 2", "t * (t - 1) // 2"),
    # The cached token attends to nothing.
    SOLUTION.replace(" + per_token + per_pair * t\n", " + per_token\n"),
    # Keeping the cache is free.
    SOLUTION.replace("fixed + bookkeeping", "fixed"),
    # Strictly more than `gain` times.
    SOLUTION.replace(">= gain", "> gain"),
    # Looks for a length that does not exist only a while, and then names one.
    SOLUTION.replace("        return None\n", "        return 1\n"),
    # Only linear growth can pay.
    SOLUTION.replace("per_token == 0 and per_pair == 0", "per_token == 0"),
    # Every step is billed the weights without a cache, none with it.
    SOLUTION.replace("cached = fixed + ", "cached = "),
    STUB,
)

CASES = (
    ((10, 0, 10, 0, 2), 3, "10 + 30 is 2 times 10 + 10"),
    ((10, 5, 10, 0, 2), 4, "bookkeeping moves it by one: 10 + 40 is 2 times 10 + 5 + 10"),
    ((6, 0, 0, 1, 2), 6, "pairs alone: 6 + 21 against 2 times 6 + 6; at 5, 21 against 22"),
    ((40_000, 1_000, 3_000, 1, 2), 16, "88.1 ms is 2 times 44.0 ms; at 15, 85.1 is not"),
    ((40_000, 1_000, 3_000, 1, 10), 131, "ten times takes longer than two"),
    ((1, 0, 1, 0, 50), 99, "1 + 99 is 50 times 1 + 1"),
    ((100, 7, 0, 0, 2), None, "if nothing grows, nothing is saved"),
)


def check(answer):
    names = ("fixed", "bookkeeping", "per_token", "per_pair", "gain")
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            given = ", ".join(f"{name}={value}" for name, value in zip(names, args, strict=True))
            return f"pays_from({given}) should be {expected} ({why}), but yours gave {got!r}."
    return None
