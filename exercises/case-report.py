"""What a case report may claim, given the counts of two runs."""

TASK = """
A report claims that a share went up by `claimed` percentage points. `before` and `after` are what
was counted: `(hits, total)`, from two independent runs. **Return `(verdict, low, high)`**: the 95 %
interval of the difference in percentage points, rounded to one digit, and

- `"refuted"` if `claimed` lies outside the interval;
- `"not supported"` if it lies inside, but so does 0;
- `"supported"` otherwise.

With shares `p` before and `q` after, the interval is `q - p` plus and minus
`1.96 * sqrt(p * (1 - p) / m + q * (1 - q) / n)`, where `m` and `n` are the totals. Its ends belong
to it. If nothing was counted, before or after, return `("not supported", None, None)`.
"""

STUB = """
from math import sqrt


def case_report(claimed, before, after):
    ...
"""

SOLUTION = """
from math import sqrt


def case_report(claimed, before, after):
    (b, m), (a, n) = before, after
    if m == 0 or n == 0:
        return "not supported", None, None
    p, q = b / m, a / n
    half = 1.96 * sqrt(p * (1 - p) / m + q * (1 - q) / n)
    low, high = 100 * (q - p - half), 100 * (q - p + half)
    if not low <= claimed <= high:
        verdict = "refuted"
    elif low <= 0 <= high:
        verdict = "not supported"
    else:
        verdict = "supported"
    return verdict, round(low, 1), round(high, 1)
"""

WRONG = (
    # Believes the difference as counted.
    SOLUTION.replace("1.96 * sqrt(p * (1 - p) / m + q * (1 - q) / n)", "0.0"),
    # The spread of one run only.
    SOLUTION.replace("p * (1 - p) / m + ", ""),
    # Reports a relative gain in place of points.
    SOLUTION.replace("100 * (q - p - half), 100 * (q - p + half)",
                     "100 * (q - p - half) / p, 100 * (q - p + half) / p"),
    # Takes before and after for each other.
    SOLUTION.replace("(b, m), (a, n) = before, after", "(a, n), (b, m) = before, after"),
    # Calls a claim supported although there may be no difference at all.
    SOLUTION.replace("low <= 0 <= high", "False"),
    # Refutes only what is too high.
    SOLUTION.replace("not low <= claimed <= high", "claimed > high"),
    # Refutes nothing.
    SOLUTION.replace("not low <= claimed <= high", "False"),
    # Shares in place of percentage points.
    SOLUTION.replace("100 * (q - p", "(q - p"),
    # Takes no data for a refutation.
    SOLUTION.replace('"not supported", None', '"refuted", None'),
    STUB,
)  # fmt: skip

CASES = (
    ((25, (400, 1000), (400, 1000)), ("refuted", -4.3, 4.3), "the same counts twice"),
    ((25, (400, 1000), (650, 1000)), ("supported", 20.8, 29.2), "40 % and 65 % of a thousand"),
    ((25, (4, 10), (6, 10)), ("not supported", -22.9, 62.9), "ten tries show next to nothing"),
    ((-20, (650, 1000), (400, 1000)), ("refuted", -29.2, -20.8), "it fell by more than that"),
    ((10, (400, 1000), (650, 1000)), ("refuted", 20.8, 29.2), "it rose by more than that"),
    ((3, (400, 1000), (430, 1000)), ("not supported", -1.3, 7.3), "3 points, but 0 is inside too"),
    ((3, (40_000, 100_000), (43_000, 100_000)), ("supported", 2.6, 3.4), "counted for longer"),
    ((0, (5, 5), (7, 7)), ("not supported", 0.0, 0.0), "all of them, both times"),
    ((25, (0, 0), (650, 1000)), ("not supported", None, None), "nothing was counted before"),
    ((25, (400, 1000), (0, 0)), ("not supported", None, None), "nothing was counted after"),
)  # fmt: skip


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got is None or tuple(got) != expected:
            return f"case_report{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
