"""Which of two bounds a step meets, and how long it takes at least."""

TASK = """
A step moves `num_bytes` and does `flops` operations. The card moves `bandwidth` bytes a second and
does `peak` operations a second, both at the same time. **Return the least time of the step in
seconds, and which of the two it waits for**: `"bandwidth"`, `"compute"`, or `"both"` where they
take equally long.
"""

STUB = """
def bound_by(num_bytes, flops, bandwidth, peak):
    seconds = ...
    return seconds, "bandwidth"
"""

SOLUTION = """
def bound_by(num_bytes, flops, bandwidth, peak):
    moving, computing = num_bytes / bandwidth, flops / peak
    if moving == computing:
        return moving, "both"
    bound = "bandwidth" if moving > computing else "compute"
    return max(moving, computing), bound
"""

WRONG = (
    # Adds the two times, though the card moves and computes at once.
    SOLUTION.replace("max(moving, computing)", "moving + computing"),
    # Hopes for the shorter one.
    SOLUTION.replace("max(", "min("),
    # Names the one that is ready first.
    SOLUTION.replace("moving > computing", "moving < computing"),
    # Takes the side by the number of bytes and operations, whatever the card.
    SOLUTION.replace("if moving > computing", "if num_bytes > flops"),
    # Forgets the ridge.
    SOLUTION.replace('return moving, "both"', 'return moving, "compute"'),
    STUB,
)

# bytes, operations, bandwidth, peak; quotients that a float holds exactly, or nearly.
CASES = (
    ((8, 4, 2, 4), (4.0, "bandwidth"), "moving takes 4 s, computing 1 s"),
    ((2, 12, 2, 4), (3.0, "compute"), "moving takes 1 s, computing 3 s"),
    ((4, 8, 2, 4), (2.0, "both"), "2 s each: the step sits on the ridge"),
    ((4, 8, 1, 8), (4.0, "bandwidth"), "more operations than bytes, and yet it waits for bytes"),
    (
        (17_133_741_824, 20_354_967_296, 3.35e12, 989.4e12),
        (17_133_741_824 / 3.35e12, "bandwidth"),
        "Llama-3-8B decodes one token after 8,192 on an H100",
    ),
    (
        (17_133_741_824, 149_157_900_000_000, 3.35e12, 989.4e12),
        (149_157_900_000_000 / 989.4e12, "compute"),
        "Llama-3-8B prefills 8,192 tokens on an H100",
    ),
)


def check(answer):
    for args, (seconds, side), why in CASES:
        got = answer(*args)
        right = (
            f"bound_by{args} should be ({seconds:.4g}, {side!r}) ({why}), but yours gave {got!r}."
        )
        if not isinstance(got, tuple) or len(got) != 2 or got[1] != side:
            return right
        if not isinstance(got[0], (int, float)) or abs(got[0] - seconds) > 1e-9 * seconds:
            return right
    return None
