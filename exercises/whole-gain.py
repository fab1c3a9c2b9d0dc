"""How many times as fast a whole step is when some of its parts are."""

TASK = """
A step has parts that take time one after another. Somebody makes some of the parts faster.

**Return how many times as fast the whole step is**, rounded to two digits.

- `parts` maps the name of each part to its time, in any unit;
- `faster` maps the names of some parts to how many times as fast they become; a part that is not
  named stays as it is, and `float("inf")` means that it takes no time any more. Something is always
  left.
"""

STUB = """
def whole_gain(parts, faster):
    return max(faster.values())
"""

SOLUTION = """
def whole_gain(parts, faster):
    after = sum(time / faster.get(name, 1) for name, time in parts.items())
    return round(sum(parts.values()) / after, 2)
"""

WRONG = (
    STUB,
    # The mean of the factors, each part counted alike.
    "def whole_gain(parts, faster):\n"
    "    factors = [faster.get(name, 1) for name in parts]\n"
    "    return round(sum(factors) / len(factors), 2)\n",
    # The mean of the factors, by time.
    "def whole_gain(parts, faster):\n"
    "    weighed = sum(time * faster.get(name, 1) for name, time in parts.items())\n"
    "    return round(weighed / sum(parts.values()), 2)\n",
    # Parts that are not named are gone.
    SOLUTION.replace("faster.get(name, 1)", 'faster.get(name, float("inf"))'),
    # The share that is left, not the gain.
    SOLUTION.replace("sum(parts.values()) / after", "after / sum(parts.values())"),
    # Only the parts that became faster.
    SOLUTION.replace("in parts.items())", "in parts.items() if name in faster)"),
    # Their times, as if they ran side by side.
    SOLUTION.replace("after = sum(", "after = max(").replace("sum(parts", "max(parts"),
)

INF = float("inf")
CASES = (
    ({"weights": 12, "cache": 4}, {"cache": 4}, 1.23, "16 against 12 + 1"),
    ({"weights": 12, "cache": 4}, {"cache": INF}, 1.33, "a quarter is gone"),
    ({"weights": 10, "cache": 10}, {"weights": 2, "cache": 2}, 2.0, "all is twice as fast"),
    ({"a": 5, "b": 3, "c": 2}, {"a": 5, "c": 2}, 2.0, "10 against 1 + 3 + 1"),
    ({"a": 4, "b": 4}, {"b": 0.5}, 0.67, "a part that becomes slower"),
    ({"a": 7}, {}, 1.0, "nothing changes"),
)


def check(answer):
    for parts, faster, expected, why in CASES:
        try:
            got = answer(dict(parts), dict(faster))
        except (ZeroDivisionError, ValueError) as error:
            got = error
        if got != expected:
            return (
                f"whole_gain({parts}, {faster}) should be {expected} ({why}), "
                f"but yours gave {got!r}."
            )
    return None
