"""Choose a setting on one trace, to be scored on another."""

from random import Random

TASK = """
`scores` maps settings to their scores on trace A, a list with one figure for each stretch; higher
is better. A setting is a tuple, one value for each knob; `default` is another such tuple. Figures
that differ by at most `slack` are equally good: the rest is noise. **Return the setting to run.**
It will be scored on trace B, which you do not see, so:

- of all settings whose mean is at most `slack` below the highest mean, take the one with the fewest
  knobs turned away from the default;
- with equally many turned, the one with the higher mean, then the one that comes first.
"""

STUB = """
def choose(scores, default, slack):
    return max(scores, key=lambda setting: sum(scores[setting]))
"""

SOLUTION = """
def choose(scores, default, slack):
    means = {s: sum(row) / len(row) for s, row in scores.items()}
    near = [s for s in means if means[s] >= max(means.values()) - slack]

    def turned(setting):
        return sum(a != b for a, b in zip(setting, default))

    return min(near, key=lambda s: (turned(s), -means[s]))
"""

WRONG = (
    STUB,
    # The default, whatever the scores.
    "def choose(scores, default, slack):\n    return default\n",
    # Only exact ties count as equally good.
    SOLUTION.replace(" - slack", ""),
    # Whatever is no worse than the default.
    SOLUTION.replace("max(means.values()) - slack", "means.get(default, 0)"),
    # The best stretch instead of the mean.
    SOLUTION.replace("sum(row) / len(row)", "max(row)"),
    # Of equally many turned knobs the first, whatever its mean.
    SOLUTION.replace("(turned(s), -means[s])", "turned(s)"),
    # Most knobs turned.
    SOLUTION.replace("(turned(s), -means[s])", "(-turned(s), -means[s])"),
    # Counts how far knobs are turned, not how many.
    SOLUTION.replace("a != b for", "abs(a - b) for"),
    # The fewest turned, but the lower mean.
    SOLUTION.replace("-means[s])", "means[s])"),
)

# Tokens a step and requests at a time: percent of good requests on three stretches each of
# azure-code and azure-conv, from the record trace_tuning.cpu ("take turns").
CODE = {
    (256, 16): [40.5, 63.0, 96.0],
    (256, 32): [40.5, 63.0, 96.0],
    (256, 256): [40.5, 63.0, 96.0],
    (512, 16): [31.0, 50.0, 77.0],
    (512, 256): [31.0, 50.0, 77.0],
    (2048, 16): [33.5, 63.0, 79.5],
    (2048, 32): [33.5, 63.0, 79.5],
    (2048, 256): [33.5, 63.0, 79.5],
}
CHAT = {
    (256, 16): [24.5, 23.0, 9.5],
    (256, 32): [43.0, 59.0, 66.5],
    (256, 256): [61.0, 60.0, 68.0],
    (512, 16): [24.5, 27.5, 10.5],
    (512, 256): [70.5, 91.5, 98.0],
    (2048, 16): [25.0, 29.5, 11.0],
    (2048, 32): [69.0, 91.0, 98.5],
    (2048, 256): [73.0, 91.0, 98.5],
}
MADE = {(1, 1): [50, 70], (9, 1): [61, 61], (1, 9): [60, 61], (9, 9): [62, 60]}
CASES = (
    (CODE, (2048, 256), 1.0, CHAT),
    (CHAT, (2048, 256), 1.0, CODE),
    (MADE, (1, 1), 2, None),
    (MADE, (1, 1), 0.5, None),
    (MADE, (1, 1), 0, None),
    (MADE, (9, 9), 0, None),
    ({(3, 3): [1.0]}, (1, 1), 0, None),
)


def _expected(scores, default, slack):
    best, chosen = max(sum(row) / len(row) for row in scores.values()), None
    for setting, row in scores.items():
        mean = sum(row) / len(row)
        rank = (len([1 for a, b in zip(setting, default, strict=True) if a != b]), -mean)
        if mean >= best - slack and (chosen is None or rank < chosen[0]):
            chosen = (rank, setting)
    return chosen[1]


def _drawn(seed):
    draw = Random(seed)
    settings = [(a, b, c) for a in (1, 2, 7) for b in (1, 5) for c in (1, 3)]
    scores = {s: [draw.randint(0, 8) for _ in range(4)] for s in settings}
    return scores, draw.choice(settings), draw.randint(0, 2), None


def _on_b(setting, b):
    if not b or setting not in b:
        return ""
    return f" with a mean of {sum(b[setting]) / len(b[setting]):.0f} on trace B"


def check(answer):
    for scores, default, slack, b in (*CASES, *map(_drawn, range(60))):
        right = _expected(scores, default, slack)
        got = answer({s: list(row) for s, row in scores.items()}, default, slack)
        if got != right:
            return (
                f"choose({scores}, {default}, {slack}) should be {right}{_on_b(right, b)}, but "
                f"yours gave {got!r}{_on_b(got, b) if isinstance(got, tuple) else ''}."
            )
    return None
