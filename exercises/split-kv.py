"""Merge the attention over parts of the keys, in any order."""

from math import exp, fsum, inf, log

TASK = """
One query attended to parts of its keys. Each part is a pair `(lse, out)`: the logarithm of the sum
of the powers of its scores, and the output, one number. **Return `(lse, out)` for all keys
together.**

- parts come in any order, and any number of them;
- a part without keys is `(-inf, 0.0)`, and so is the whole if no part has a key;
- scores may be in the thousands: no power may overflow.
"""

STUB = """
from math import exp, inf, log

def merge(parts):
    lses = [lse for lse, _ in parts]
    outs = [out for _, out in parts]
    return sum(lses) / len(lses), sum(outs) / len(outs)
"""

SOLUTION = """
from math import exp, inf, log

def merge(parts):
    peak = max((lse for lse, _ in parts), default=-inf)
    if peak == -inf:
        return -inf, 0.0
    weights = [exp(lse - peak) for lse, _ in parts]
    total = sum(weights)
    mixed = sum(weight * out for weight, (_, out) in zip(weights, parts))
    return peak + log(total), mixed / total
"""

WRONG = (
    STUB,
    # Lets powers overflow.
    SOLUTION.replace("exp(lse - peak)", "exp(lse)").replace("peak + log(total)", "log(total)"),
    # Forgets what was subtracted.
    SOLUTION.replace("peak + log(total)", "log(total)"),
    # Weighs with the log-sum-exp itself.
    SOLUTION.replace("exp(lse - peak)", "lse"),
    # Divides by the number of parts.
    SOLUTION.replace("mixed / total", "mixed / len(parts)"),
    # Minus infinity from minus infinity.
    SOLUTION.replace("    if peak == -inf:\n        return -inf, 0.0\n", ""),
)

CASES = (
    ([(log(2), 6.0), (log(6), 8.0)], "sums of 2 and 6: (2 x 6 + 6 x 8) / 8"),
    ([(log(6), 8.0), (log(2), 6.0)], "the same in the other order"),
    ([(0.5, 3.0)], "one part"),
    ([(1.0, 2.0), (1.0, 4.0)], "equal weights"),
    ([(-inf, 0.0), (log(3), 5.0)], "a part without keys"),
    ([(-inf, 0.0), (-inf, 0.0)], "no key at all"),
    ([], "no part at all"),
    ([(2000.0, 1.0), (2000.0 + log(3), 5.0), (-50.0, 9.0)], "scores in the thousands"),
    ([(-900.0, 1.0), (-900.0 + log(3), 5.0)], "very low scores"),
)


def _expected(parts):
    highest = max((lse for lse, _ in parts), default=-inf)
    if highest == -inf:
        return -inf, 0.0
    powers = [exp(lse - highest) for lse, _ in parts]
    mixed = fsum(power * out for power, (_, out) in zip(powers, parts, strict=True))
    return highest + log(fsum(powers)), mixed / fsum(powers)


def _same(got, expected):
    return (
        isinstance(got, (tuple, list))
        and len(got) == 2
        and all(isinstance(each, (int, float)) for each in got)
        and all(
            mine == yours or abs(mine - yours) <= 1e-9 * max(1, abs(yours))
            for mine, yours in zip(got, expected, strict=True)
        )
    )


def check(answer):
    for parts, why in CASES:
        expected = _expected(parts)
        try:
            got = answer(list(parts))
        except (ArithmeticError, ValueError) as error:
            got = error
        if not _same(got, expected):
            shown = tuple(round(each, 4) for each in expected)
            return f"merge({parts}) should be {shown} ({why}), but yours gave {got!r}."
    return None
