"""Take one more block of keys into an attention that is under way."""

from math import exp, inf, isnan, nan

TASK = """
One query has gone through some keys. What it knows is `(peak, total, mixed)`: the highest score so
far, the sum of `exp(score - peak)`, and the sum of `exp(score - peak) * value`. Before the first
key that is `(-inf, 0.0, 0.0)`. Now comes a block: a list of pairs `(score, value)`. **Return the
three once the block is taken in.**

- a slot that the query must not see has the score `-inf`; its value may be anything, **NaN too**;
- a block may have no slot that is seen, the first one also;
- scores may be in the thousands: no power may overflow.
"""

STUB = """
from math import exp

def take_in(state, block):
    peak, total, mixed = state
    for score, value in block:
        total += exp(score)
        mixed += exp(score) * value
    return peak, total, mixed
"""

SOLUTION = """
from math import exp, inf

def take_in(state, block):
    peak, total, mixed = state
    for score, value in block:
        if score == -inf:
            continue
        high = max(peak, score)
        shrink, weight = exp(peak - high), exp(score - high)
        total = total * shrink + weight
        mixed = mixed * shrink + weight * value
        peak = high
    return peak, total, mixed
"""

WRONG = (
    STUB,
    # Lets a weight of nothing meet NaN, and takes minus infinity from itself.
    SOLUTION.replace("        if score == -inf:\n            continue\n", ""),
    # Forgets to shrink what was summed before.
    SOLUTION.replace("mixed * shrink", "mixed"),
    SOLUTION.replace("total * shrink", "total"),
    # Keeps the peak it had.
    SOLUTION.replace("high = max(peak, score)", "high = peak if total else score"),
    # Starts anew with each block.
    SOLUTION.replace("peak, total, mixed = state", "peak, total, mixed = -inf, 0.0, 0.0"),
)

CASES = (
    ((-inf, 0.0, 0.0), [(0.0, 4.0), (0.0, 8.0)], "two equal scores"),
    ((0.0, 2.0, 12.0), [(1.0, 20.0)], "a higher score: what was summed shrinks"),
    ((1.0, 2.0, 12.0), [(0.0, 20.0), (-1.0, 2.0)], "lower scores"),
    ((0.5, 1.0, 3.0), [(0.5, 5.0), (-inf, nan)], "a free slot at the end, with NaN in it"),
    ((0.5, 1.0, 3.0), [(-inf, nan), (-inf, 7.0)], "nothing is seen"),
    ((-inf, 0.0, 0.0), [(-inf, nan)], "nothing is seen in the first block"),
    ((-inf, 0.0, 0.0), [(-inf, 9.0), (3.0, 6.0)], "the first seen slot is the second"),
    ((2000.0, 1.5, 4.0), [(2001.0, 2.0), (1990.0, 5.0)], "scores in the thousands"),
    ((-900.0, 1.0, 4.0), [(-905.0, 2.0)], "very low scores"),
    ((2.0, 1.0, 1.0), [], "an empty block"),
)


def _expected(state, block):
    peak, total, mixed = state
    seen = [pair for pair in block if pair[0] > -inf]
    high = max([peak, *(score for score, _ in seen)])
    if high == -inf:
        return state
    shrink = exp(peak - high)
    weights = [exp(score - high) for score, _ in seen]
    added = sum(w * value for w, (_, value) in zip(weights, seen, strict=True))
    return high, total * shrink + sum(weights), mixed * shrink + added


def _same(got, expected):
    return (
        isinstance(got, (tuple, list))
        and len(got) == 3
        and all(isinstance(each, (int, float)) and not isnan(each) for each in got)
        and all(
            mine == yours or abs(mine - yours) <= 1e-9 * max(1, abs(yours))
            for mine, yours in zip(got, expected, strict=True)
        )
    )


def check(answer):
    for state, block, why in CASES:
        expected = _expected(state, block)
        try:
            got = answer(state, list(block))
        except (ArithmeticError, ValueError) as error:
            got = error
        if not _same(got, expected):
            shown = tuple(round(each, 4) for each in expected)
            return f"take_in({state}, {block}) should be {shown} ({why}), but yours gave {got!r}."
    return None
