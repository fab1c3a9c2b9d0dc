"""A softmax that large, small and equal scores do not break."""

from math import inf, log

TASK = """
This softmax is the formula as it is printed, and it breaks on large scores: `exp(1000)` is more
than a float can hold. **Repair it.** It takes a list of scores and returns the list of weights.

- the weights of scores like 1000 are as well defined as those of scores like 0;
- a row of equal scores gives equal weights, however large or small the scores are;
- a score of `-inf` is a key that the mask hides: its weight is exactly 0. One score at least is
  finite.
"""

STUB = """
from math import exp

def softmax(scores):
    powers = [exp(score) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]
"""

SOLUTION = """
from math import exp

def softmax(scores):
    highest = max(scores)
    powers = [exp(score - highest) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]
"""

WRONG = (
    STUB,
    # The lowest score does not bound the exponent from above.
    SOLUTION.replace("= max(scores)", "= min(scores)"),
    # Nor does the mean, and it is -inf where a key is hidden.
    SOLUTION.replace("= max(scores)", "= sum(scores) / len(scores)"),
    # The largest by size is wrong for a row of very negative scores.
    SOLUTION.replace("= max(scores)", "= max(abs(score) for score in scores)"),
    # Clips: two large scores become equal.
    SOLUTION.replace("exp(score - highest)", "exp(min(score, 700.0))"),
    # Divides by the highest: other weights.
    SOLUTION.replace("score - highest", "score / highest"),
    # A small number against division by zero is added to everybody's total.
    SOLUTION.replace("sum(powers)", "sum(powers) + 1e-9"),
    # Forgets to divide.
    SOLUTION.replace("power / total", "power"),
)

CASES = (
    ([0.0, log(3)], [0.25, 0.75], "exp gives 1 and 3"),
    ([5.0], [1.0], "a single key takes everything"),
    ([1000.0, 1000.0], [0.5, 0.5], "equal scores, equal weights"),
    ([-1000.0] * 4, [0.25] * 4, "equal scores, equal weights"),
    ([1000.0, 1000.0 + log(3)], [0.25, 0.75], "only differences count"),
    ([1000.0, 0.0], [1.0, 0.0], "the other weight is too small for a float"),
    ([-inf, -800.0, -800.0], [0.0, 0.5, 0.5], "the first key is hidden"),
)


def _same(got, expected):
    return (
        isinstance(got, (list, tuple))
        and len(got) == len(expected)
        and all(abs(a - b) < 1e-12 for a, b in zip(got, expected, strict=True))
    )


def check(answer):
    for scores, expected, why in CASES:
        try:
            got = answer(list(scores))
        except ArithmeticError as error:
            gave = f"raised {type(error).__name__}: {error}"
        else:
            if _same(got, expected):
                continue
            gave = f"gave {got!r}"
        return f"softmax({scores}) should be {expected} ({why}), but yours {gave}."
    return None
