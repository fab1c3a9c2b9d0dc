"""How many layers ahead a load must be asked for, so that asking earlier would end no sooner."""

TASK = """
A step computes 100 layers one after another, `compute` microseconds each. Before a layer is
computed its keys and values have to be there. A load keeps the link busy for `load` microseconds,
one load after another, and arrives `latency` microseconds after it has left the link.

With **distance** `d` (at least 1), a layer's load is asked for when the layer `d` before it
*starts* to compute; the first `d` are asked for at once. The link then takes it as soon as it is
free.

**Return the smallest distance at which the step ends as soon as it can.** All are whole numbers,
`compute` and `load` at least 1, and the answer is below 50.
"""

STUB = """
def distance(load, compute, latency):
    return 1
"""

SOLUTION = """
def distance(load, compute, latency):
    return -(-(load + latency) // max(load, compute))
"""

WRONG = (
    STUB,
    # Forgets that a load takes time on the link too.
    SOLUTION.replace("(load + latency)", "max(1, latency)"),
    # Forgets the latency.
    SOLUTION.replace("(load + latency)", "load"),
    # Rounds down.
    SOLUTION.replace(
        "-(-(load + latency) // max(load, compute))", "(load + latency) // max(load, compute)"
    ),
    # Where the link is the slower one, asks as if computing were.
    SOLUTION.replace("max(load, compute)", "compute"),
    # Always one more, to be safe.
    SOLUTION.replace("return -(-", "return 1 - (-"),
    # Always the most.
    STUB.replace("return 1", "return 49"),
)

CASES = (
    (1, 2, 0),
    (2, 2, 0),
    (3, 2, 0),
    (1, 2, 4),
    (2, 5, 8),
    (2, 5, 9),
    (40, 10, 0),
    (40, 10, 100),
    (7, 1, 7),
    (1, 1, 30),
)


def _end(load, compute, latency, distance, layers=100):
    starts, link, done = [], 0, 0
    for layer in range(layers):
        asked = 0 if layer < distance else starts[layer - distance]
        link = max(link, asked) + load
        starts.append(max(done, link + latency))
        done = starts[-1] + compute
    return done


def check(answer):
    for load, compute, latency in CASES:
        ends = [_end(load, compute, latency, d) for d in range(1, 50)]
        expected = ends.index(min(ends)) + 1
        got = answer(load, compute, latency)
        if got != expected:
            return (
                f"distance(load={load}, compute={compute}, latency={latency}) should be "
                f"{expected}, which ends after {min(ends)} microseconds, but yours gave {got!r}."
            )
    return None
