"""Choose the blocks that a query reads, without looking at their keys."""

from random import Random

TASK = """
A block keeps of its keys only the smallest and the largest number of each channel. **Return the
numbers of the `k` blocks that the query `q` reads, in rising order**: the last block always, and of
the others those whose keys could score highest.

- `extremes` has for each block a pair of lists, `(lows, highs)`, one number a channel; a query is a
  list of as many numbers;
- a block's bound is the highest score (the sum of products with `q`) of anything between its lows
  and its highs;
- of blocks with equal bounds the earlier one is read;
- with `k` at least the number of blocks, all are read.
"""

STUB = """
def choose_blocks(q, extremes, k):
    def bound(block):
        lows, highs = extremes[block]
        return sum(x * high for x, high in zip(q, highs))

    return sorted(range(len(extremes)), key=bound)[-k:]
"""

SOLUTION = """
def choose_blocks(q, extremes, k):
    def bound(block):
        lows, highs = extremes[block]
        return sum(max(x * low, x * high) for x, low, high in zip(q, lows, highs))

    last = len(extremes) - 1
    others = sorted(range(last), key=bound, reverse=True)
    return sorted([*others[: k - 1], last])
"""

WRONG = (
    STUB,
    # The highs alone bound nothing where the query is negative.
    SOLUTION.replace("max(x * low, x * high)", "x * high"),
    # The middle between the extremes, much like an average.
    SOLUTION.replace("max(x * low, x * high)", "x * (low + high) / 2"),
    # One corner for all channels.
    SOLUTION.replace(
        "sum(max(x * low, x * high) for x, low, high in zip(q, lows, highs))",
        "max(sum(x * y for x, y in zip(q, side)) for side in (lows, highs))",
    ),
    # The last block, with the query's own key, only if it scores.
    SOLUTION.replace("range(last)", "range(last + 1)").replace("k - 1], last]", "k]]"),
    # In the order of their bounds.
    SOLUTION.replace("return sorted([*others[: k - 1], last])", "return [*others[: k - 1], last]"),
    # Of equal bounds the later one.
    SOLUTION.replace("range(last), key", "reversed(range(last)), key"),
)

HAND = [([-9, 0], [1, 1]), ([0, 2], [3, 3]), ([2, -1], [4, 4]), ([0, 0], [0, 0])]
CASES = (
    (([2, -1], HAND, 2), [2, 3], "bounds 2, 4 and 9, and the last block"),
    (([-1, 0], HAND, 2), [0, 3], "a negative query turns to the lows"),
    (([2, -1], HAND, 3), [1, 2, 3], "the two highest bounds, in the order of the text"),
    (([0, 0], HAND, 3), [0, 1, 3], "all bounds are equal"),
    (([2, -1], HAND, 1), [3], "room for the last block only"),
    (([2, -1], HAND, 9), [0, 1, 2, 3], "fewer blocks than it may read"),
    (([5], [([1], [2])], 1), [0], "one block"),
)


def _right(q, extremes, k):
    bounds = [sum(max(x * a, x * b) for x, a, b in zip(q, *pair, strict=True)) for pair in extremes]
    last = len(extremes) - 1
    order = sorted(range(last), key=lambda block: (-bounds[block], block))
    return sorted([*order[: k - 1], last])


def _drawn(seed):
    draw = Random(seed)
    channels, count = draw.randint(1, 4), draw.randint(1, 9)
    pairs = []
    for _ in range(count):
        keys = [[draw.randint(-9, 9) for _ in range(channels)] for _ in range(3)]
        columns = list(zip(*keys, strict=True))
        pairs.append(([min(c) for c in columns], [max(c) for c in columns]))
    return [draw.randint(-5, 5) for _ in range(channels)], pairs, draw.randint(1, count)


def check(answer):
    drawn = [(args, _right(*args), "drawn at random") for args in map(_drawn, range(60))]
    for (q, extremes, k), expected, why in (*CASES, *drawn):
        got = answer(list(q), [(list(a), list(b)) for a, b in extremes], k)
        if got != expected:
            return (
                f"choose_blocks({q}, {extremes}, {k}) should be {expected} ({why}), "
                f"but yours gave {got!r}."
            )
    return None
