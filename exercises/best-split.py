"""How many of the cards should compute prompts, if the rest decodes."""

TASK = """
A request needs `prefill_s` seconds of a card that computes prompts, and `decode_s` seconds of one
that decodes (its share of a batch). You have `cards` of them. **Return how many should compute
prompts**, so that the most requests a second can be served.

- At least one card stands on either side.
- Of several equally good numbers return the smallest.
"""

STUB = """
def split(cards, prefill_s, decode_s):
    return cards // 2
"""

SOLUTION = """
def split(cards, prefill_s, decode_s):
    def rate(prefill):
        return min(prefill / prefill_s, (cards - prefill) / decode_s)

    return max(range(1, cards), key=rate)
"""

WRONG = (
    STUB,
    # Rounds the share of the work.
    "def split(cards, p, d):\n    return min(cards - 1, max(1, round(cards * p / (p + d))))\n",
    # Rounds it down.
    "def split(cards, p, d):\n    return max(1, int(cards * p / (p + d)))\n",
    # Adds the two rates: the slower side bounds both.
    SOLUTION.replace(
        "min(prefill / prefill_s, (cards - prefill) / decode_s)",
        "prefill / prefill_s + (cards - prefill) / decode_s",
    ),
    # Leaves a side empty.
    SOLUTION.replace("range(1, cards)", "range(cards + 1)").replace("key=rate", "key=lambda p: -p"),
    # Of equals the largest.
    SOLUTION.replace("range(1, cards)", "range(cards - 1, 0, -1)"),
    # Takes the sides for each other.
    SOLUTION.replace("prefill / prefill_s", "prefill / decode_s").replace(
        "(cards - prefill) / decode_s", "(cards - prefill) / prefill_s"
    ),
)

CASES = (
    (4, 0.15, 0.15),
    (4, 0.5, 0.1),
    (4, 0.01, 0.9),
    (8, 0.16, 0.24),
    (2, 9.0, 0.1),
    (10, 0.14, 0.36),
    (6, 0.55, 0.45),
    (3, 0.1, 0.1),
    (7, 1.0, 1.9),
    (5, 0.3, 0.33),
)


def _expected(cards, prefill_s, decode_s):
    best, most = 0, -1.0
    for prefill in range(1, cards):
        rate = min(prefill / prefill_s, (cards - prefill) / decode_s)
        if rate > most:
            best, most = prefill, rate
    return best


def check(answer):
    for case in CASES:
        got, expected = answer(*case), _expected(*case)
        if got != expected:
            return f"split{case} should return {expected}, yours gave {got!r}."
    return None
