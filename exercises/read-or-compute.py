"""From which length on a prefix is read from a tier faster than it is computed again."""

TASK = """
A step over `t` new tokens behind `c` cached ones takes, in nanoseconds,

- `floor` at least: so long it reads the weights, whatever `t` is;
- or, if that is longer, `per_token` for each of the `t` tokens and `per_pair` for each pair of a
  new token and a token it attends to: itself, the new ones before it, and all `c` cached ones.

A prompt is a prefix of `n` tokens and one token more. Either all `n + 1` are computed in one step,
or the prefix is read, which takes `latency` and `per_read` for each of its tokens, and *then* the
one token is computed behind it.

**Return the smallest `n`, from 1 to 100,000, at which reading is strictly faster**, or `None`. All
arguments are whole numbers. If reading is faster at some length, it is at every longer one.
"""

STUB = """
def break_even(floor, per_token, per_pair, latency, per_read):
    ...
"""

SOLUTION = """
def break_even(floor, per_token, per_pair, latency, per_read):
    def step(t, c):
        pairs = t * c + t * (t + 1) // 2
        return max(floor, per_token * t + per_pair * pairs)

    def reading_is_faster(n):
        return latency + per_read * n + step(1, n) < step(n + 1, 0)

    low, high = 0, 100_000
    if not reading_is_faster(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if reading_is_faster(middle):
            high = middle
        else:
            low = middle
    return high
"""

WRONG = (
    STUB,
    # The last token is computed for nothing when the prefix was read.
    SOLUTION.replace(" + step(1, n) <", " <"),
    # The last token does not look at what was read.
    SOLUTION.replace("step(1, n)", "step(1, 0)"),
    # Reading starts at once.
    SOLUTION.replace("latency + ", ""),
    # Weights cost nothing.
    SOLUTION.replace(
        "max(floor, per_token * t + per_pair * pairs)", "per_token * t + per_pair * pairs"
    ),
    # Weights are paid besides the arithmetic.
    SOLUTION.replace("max(floor, per_token", "(floor + per_token"),
    # Arithmetic is linear.
    SOLUTION.replace(" + per_pair * pairs", ""),
    # Counts every pair twice.
    SOLUTION.replace("t * (t + 1) // 2", "t * t"),
    # At equal times, too.
    SOLUTION.replace("n) < step", "n) <= step"),
    # The longest prefix that is computed.
    SOLUTION.replace("return high\n", "return low\n"),
    # Names the longest length where no length pays.
    SOLUTION.replace("return None", "return high"),
)

CASES = (
    ((0, 10, 0, 0, 5), 1, "computing costs 10 a token, reading 5"),
    ((0, 10, 0, 0, 10), None, "each token takes as long to read as to compute"),
    ((0, 10, 0, 40, 5), 9, "at 8 tokens both take 90, at 9 it is 95 against 100"),
    ((100, 10, 0, 0, 5), 19, "below 10 tokens the weights are read anyway; 195 against 200"),
    ((0, 10, 2, 0, 12), 2, "at 2 tokens 24 + 10 + 6 against 30 + 12; at 1 both take 26"),
    ((5_000_000, 16_000, 1, 100_000, 5_000), 453, "a card with a link above its edge"),
    ((5_000_000, 16_000, 1, 100_000, 17_000), 4_340, "and below it"),
    ((5_000_000, 16_000, 0, 100_000, 17_000), None, "and below it, with nothing quadratic"),
)


def check(answer):
    names = ("floor", "per_token", "per_pair", "latency", "per_read")
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            given = ", ".join(f"{name}={value}" for name, value in zip(names, args, strict=True))
            return f"break_even({given}) should be {expected} ({why}), but yours gave {got!r}."
    return None
