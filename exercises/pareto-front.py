"""Which settings does nobody beat?"""

from random import Random

TASK = """
Each setting is a pair: a figure that should be high, and one that should be low. One setting
*beats* another if it is at least as good at both, and better at one. **Return the settings that
nobody beats**, in the order they were given.

- Equal pairs do not beat each other: all of them stay or none.
- One setting alone is a front.
"""

STUB = """
def front(points):
    best = max(points)
    return [best]
"""

SOLUTION = """
def front(points):
    def beats(a, b):
        return a[0] >= b[0] and a[1] <= b[1] and a != b

    return [p for p in points if not any(beats(q, p) for q in points)]
"""

WRONG = (
    STUB,
    # Better at both: one that is equal at one and worse at the other stays.
    SOLUTION.replace("a[0] >= b[0] and a[1] <= b[1] and a != b", "a[0] > b[0] and a[1] < b[1]"),
    # Equal pairs throw each other away.
    SOLUTION.replace(" and a != b", "").replace(
        "for q in points)]", "for q in points if q is not p)]"
    ),
    # Better at one is not enough to beat.
    SOLUTION.replace("a[0] >= b[0] and a[1] <= b[1] and a != b", "a[0] > b[0] or a[1] < b[1]"),
    # Both high.
    SOLUTION.replace("a[1] <= b[1]", "a[1] >= b[1]"),
    # In order of the first figure.
    SOLUTION.replace("[p for p in points", "[p for p in sorted(points, reverse=True)"),
    # Equal pairs once.
    SOLUTION.replace("[p for p in points", "[p for p in dict.fromkeys(points)"),
)

CASES = (
    [(90, 95), (63, 74), (61, 80), (12, 54)],
    [(5, 5)],
    [(5, 5), (5, 4)],
    [(5, 5), (6, 5)],
    [(3, 3), (3, 3), (2, 4)],
    [(1, 1), (2, 2), (3, 3)],
    [(1, 9), (2, 5), (3, 1)],
)


def _expected(points):
    kept = []
    for good, ms in points:
        better = [p for p in points if p[0] >= good and p[1] <= ms]
        if all(p == (good, ms) for p in better):
            kept.append((good, ms))
    return kept


def _drawn(seed):
    draw = Random(seed)
    return [(draw.randint(0, 5), draw.randint(0, 5)) for _ in range(draw.randint(1, 8))]


def check(answer):
    for points in (*CASES, *map(_drawn, range(60))):
        expected = _expected(points)
        got = answer(list(points))
        if got != expected:
            return f"front({points}) should be {expected}, but yours gave {got!r}."
    return None
