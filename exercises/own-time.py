"""How long each name of a trace ran for itself."""

TASK = """
A profiler gives spans `(name, start, end)` of one thread. They nest: a span lies wholly inside
another or does not touch it. A span's **own time** is its length less that of the spans *directly*
inside it.

**Return a dictionary from each name to the own time of all its spans together.** The spans come in
any order. Two spans may start together; then the longer one is outside. No two are equal.
"""

STUB = """
def own_times(spans):
    times = {}
    for name, start, end in spans:
        times[name] = times.get(name, 0) + end - start
    return times
"""

SOLUTION = """
def own_times(spans):
    times, stack = {}, []
    for name, start, end in sorted(spans, key=lambda s: (s[1], -s[2])):
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack:  # the innermost span around this one
            times[stack[-1][0]] -= end - start
        times[name] = times.get(name, 0) + end - start
        stack.append((name, end))
    return times
"""

WRONG = (
    STUB,
    # Takes a span off every span around it, not only the innermost.
    SOLUTION.replace(
        "        if stack:  # the innermost span around this one\n"
        "            times[stack[-1][0]] -= end - start\n",
        "        for outer, _ in stack:\n            times[outer] -= end - start\n",
    ),
    # One span a name: the last one wins.
    SOLUTION.replace("times.get(name, 0) + end - start", "end - start"),
    # Believes the order in which the spans came.
    SOLUTION.replace("sorted(spans, key=lambda s: (s[1], -s[2]))", "spans"),
    # Of two that start together the shorter one is taken for the outer.
    SOLUTION.replace("(s[1], -s[2])", "(s[1], s[2])"),
    # A span that begins where another ends is put inside of it.
    SOLUTION.replace("<= start", "< start"),
)

CASES = (
    [("step", 0, 10)],
    [("step", 0, 10), ("layer", 1, 9), ("mm", 2, 5), ("mm", 5, 8)],
    [("mm", 2, 5), ("layer", 1, 9), ("step", 0, 10), ("add", 8, 9)],
    [("mm", 0, 4), ("step", 0, 12), ("linear", 0, 5), ("linear", 5, 11), ("mm", 6, 11)],
    [("layer", 6, 12), ("step", 0, 12), ("layer", 0, 6), ("mm", 1, 3), ("mm", 7, 12)],
)


def _within(span, other):
    return other is not span and other[1] <= span[1] and span[2] <= other[2]


def _right(spans):
    """By definition: less the spans inside that lie in no other span inside."""
    times = {}
    for one in spans:
        inside = [s for s in spans if _within(s, one)]
        direct = [
            s
            for s in inside
            if not any(o is not s and o[1] <= s[1] and s[2] <= o[2] for o in inside)
        ]
        own = one[2] - one[1] - sum(s[2] - s[1] for s in direct)
        times[one[0]] = times.get(one[0], 0) + own
    return times


def check(answer):
    for spans in CASES:
        expected = _right(spans)
        try:
            got = answer(list(spans))
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
        if got != expected:
            return f"own_times({spans}) should be {expected}, but yours gave {got!r}."
    return None
