"""What one memory can serve, by Little's law."""

TASK = """
`rate` requests arrive each second. Each reserves `reserved` tokens of `bytes_per_token` bytes, gets
one of its `output` tokens every `step_ms` milliseconds, and leaves after the last; its prompt is
free. The memory has `budget` bytes. **Return four numbers**:

- `wanted`: how many run at once, on average, if nobody waits and nobody is turned away;
- `fits`: how many whole requests the memory holds;
- `served`: the requests a second that it can serve at most;
- `refused`: the share of the requests that must at least be turned away, from 0 to 1.
"""

STUB = """
def load_report(rate, output, step_ms, reserved, bytes_per_token, budget):
    ...
"""

SOLUTION = """
def load_report(rate, output, step_ms, reserved, bytes_per_token, budget):
    residence = output * step_ms / 1000
    wanted = rate * residence
    fits = budget // (reserved * bytes_per_token)
    served = min(rate, fits / residence)
    return wanted, fits, served, 1 - served / rate
"""

WRONG = (
    # Milliseconds taken for seconds.
    SOLUTION.replace(" / 1000", ""),
    # A part of a request fits.
    SOLUTION.replace("budget // (", "budget / ("),
    # Serves more than come.
    SOLUTION.replace("min(rate, fits / residence)", "fits / residence"),
    # The mean number running takes the place of what fits.
    SOLUTION.replace("fits / residence)", "wanted / residence)"),
    # One token takes all of the stay.
    SOLUTION.replace("output * step_ms", "step_ms"),
    # The share of the requests that are served.
    SOLUTION.replace("1 - served / rate", "served / rate"),
    # By how much demand passes what can be served, not a share of the demand.
    SOLUTION.replace("1 - served / rate", "max(0, rate / max(served, 1e-9) - 1)"),
    STUB,
)

CASES = (
    ((2, 100, 20, 10, 1, 50), (4, 5, 2, 0), "each stays 2 s, so 4 run at once; 5 fit"),
    ((4, 100, 20, 10, 1, 50), (8, 5, 2.5, 0.375), "8 would run, 5 fit, and 5 in 2 s are 2.5 a s"),
    ((4, 100, 20, 10, 1, 59), (8, 5, 2.5, 0.375), "59 slots hold no sixth request of 10"),
    ((4, 100, 20, 10, 2, 59), (8, 2, 1, 0.75), "two bytes a token: 2 fit"),
    ((4, 100, 20, 100, 1, 50), (8, 0, 0, 1), "nothing fits"),
    (
        (100, 200, 30, 2048, 819_200, 12 * 2**30),
        (600, 7, 7 / 6, 1 - 7 / 600),
        "100 requests a second at 200 tokens of 30 ms, 2,048 reserved, OPT-13B in 12 GiB",
    ),
)


def check(answer):
    names = ("wanted", "fits", "served", "refused")
    for args, expected, why in CASES:
        got = answer(*args)
        if not isinstance(got, (tuple, list)) or len(got) != 4:
            return f"load_report{args} should return four numbers, but yours gave {got!r}."
        for name, right, found in zip(names, expected, got, strict=True):
            if not isinstance(found, (int, float)) or not abs(found - right) <= 1e-9 * (1 + right):
                return (
                    f"load_report{args}: {name} should be {right:g} ({why}), "
                    f"but yours gave {found!r}."
                )
    return None
