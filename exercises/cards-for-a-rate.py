"""A capacity plan with an interval, from a load test that was repeated with several seeds."""

TASK = """
One card was tested at several rates, with several seeds each: `tests[rate]` are the shares of
requests that kept the target, one a seed. A card *holds* a rate, by some judge, if the judge's
share is at least `wanted` there **and at every lower rate that was tested**.

- The careful judge takes the least share of the seeds, the hopeful judge the greatest.
- Cards are alike, and the demand is spread evenly: `n` cards serve `demand` requests a second if
  `demand / n` is at most the greatest rate that a card holds.

**Return `(hopeful, careful)`: the fewest cards by each judge.** Where a judge finds no rate that a
card holds, the number is `None`.
"""

STUB = """
def cards(demand, tests, wanted):
    best = max(rate for rate, shares in tests.items() if max(shares) >= wanted)
    return demand / best, demand / best
"""

SOLUTION = """
def cards(demand, tests, wanted):
    found = []
    for judge in (max, min):
        held = None
        for rate in sorted(tests):
            if judge(tests[rate]) < wanted:
                break
            held = rate
        found.append(None if held is None else -int(-demand // held))
    return tuple(found)
"""

WRONG = (
    STUB,
    # A rate above one that was not held counts too.
    SOLUTION.replace("break", "continue"),
    # Takes the rates as they come.
    SOLUTION.replace("sorted(tests)", "tests"),
    # The two judges the other way round.
    SOLUTION.replace("(max, min)", "(min, max)"),
    # Half a card.
    SOLUTION.replace("-int(-demand // held)", "demand / held"),
    # Rounds down.
    SOLUTION.replace("-int(-demand // held)", "int(demand // held)"),
    # One card too many where it divides.
    SOLUTION.replace("-int(-demand // held)", "int(demand // held) + 1"),
    # The average of the seeds for both.
    SOLUTION.replace("judge(tests[rate])", "(sum(tests[rate]) / len(tests[rate]))"),
    # Exactly what was wanted is not enough.
    SOLUTION.replace("< wanted", "<= wanted"),
    # Goes on with the last rate tried instead of none.
    SOLUTION.replace("held = None", "held = min(tests)"),
)

SIX = {
    1.0: [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    2.0: [1.0, 0.99, 1.0, 1.0, 0.98, 1.0],
    2.5: [0.97, 0.91, 1.0, 0.96, 0.94, 0.99],
    3.0: [0.62, 0.51, 0.88, 0.7, 0.59, 0.75],
}
CASES = (
    (20, SIX, 0.95),
    (5, SIX, 0.9),
    (20, SIX, 0.5),
    (7, {3.0: [0.5, 0.6], 1.0: [0.99, 0.9], 2.0: [0.95, 0.8]}, 0.95),
    (10, {1.0: [0.5, 0.9], 2.0: [1.0, 1.0]}, 0.9),
    (10, {4.0: [0.5], 5.0: [0.99]}, 0.9),
    (0.5, SIX, 0.9),
)


def _right(demand, tests, wanted):
    found = []
    for judge in (max, min):
        held = [
            rate
            for rate in tests
            if all(judge(tests[low]) >= wanted for low in tests if low <= rate)
        ]
        number = 1
        while held and demand > number * max(held):
            number += 1
        found.append(number if held else None)
    return tuple(found)


def check(answer):
    for demand, tests, wanted in CASES:
        got = answer(demand, {rate: list(shares) for rate, shares in tests.items()}, wanted)
        right = _right(demand, tests, wanted)
        if not isinstance(got, tuple | list) or tuple(got) != right:
            return (
                f"cards({demand}, {tests}, {wanted}) should return {right}, but yours gave {got!r}."
            )
    return None
