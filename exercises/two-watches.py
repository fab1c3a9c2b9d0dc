"""A user who waits, and two stopwatches: from sending, and from when a request was due."""

TASK = """
A server answers one request at a time, in order. `due` are the moments at which requests should be
sent, in order; `service` is how long the server works on each. A single user sends a request when
it is due, but not before the answer to the one before it has come.

**Return two lists of times to the answer**: from when each request was *sent*, and from when it was
*due*.
"""

STUB = """
def two_watches(due, service):
    return list(service), list(service)
"""

SOLUTION = """
def two_watches(due, service):
    from_sent, from_due, free = [], [], 0.0
    for moment, seconds in zip(due, service):
        sent = max(moment, free)
        free = sent + seconds
        from_sent.append(free - sent)
        from_due.append(free - moment)
    return from_sent, from_due
"""

WRONG = (
    STUB,
    # Sends at once, whatever the schedule says.
    SOLUTION.replace("max(moment, free)", "free"),
    # Sends when due, though the answer before has not come.
    SOLUTION.replace("max(moment, free)", "moment"),
    # Both watches start at sending.
    SOLUTION.replace("free - moment", "free - sent"),
    # Counts the wait alone.
    SOLUTION.replace("free - moment", "sent - moment"),
    # The wait for the one before it, but not what that one waited for.
    SOLUTION.replace("free = sent + seconds", "free = moment + seconds").replace(
        "free - sent", "seconds"
    ),
    # The right lists, the other way round.
    SOLUTION.replace("return from_sent, from_due", "return from_due, from_sent"),
)

CASES = (
    ([0, 2, 4, 6, 8, 10], [1, 1, 1, 11, 1, 1]),
    ([0, 0, 0], [2, 2, 2]),
    ([5, 20, 21], [1, 4, 1]),
    ([0, 1, 2, 3], [3, 1, 1, 1]),
    ([0.5], [0.25]),
    ([0, 10, 11, 12, 30], [1, 5, 5, 5, 1]),
)


def _right(due, service):
    """The answer to each comes after the longest chain of services that ends with it."""
    ends = [
        max(due[first] + sum(service[first : last + 1]) for first in range(last + 1))
        for last in range(len(due))
    ]
    return list(service), [end - moment for end, moment in zip(ends, due, strict=True)]


def check(answer):
    for due, service in CASES:
        got, right = answer(list(due), list(service)), _right(due, service)
        if not isinstance(got, tuple | list) or len(got) != 2:
            return f"two_watches({due}, {service}) should return two lists, but yours gave {got!r}."
        for name, want, found in zip(("sent", "due"), right, got, strict=True):
            same = len(found) == len(want) and all(
                abs(a - b) < 1e-9 for a, b in zip(found, want, strict=True)
            )
            if not same:
                return (
                    f"two_watches({due}, {service}): the times from {name} should be {want},"
                    f" but yours gave {list(found)}."
                )
    return None
