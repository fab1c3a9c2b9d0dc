"""What a needle test of a few tries proves."""

TASK = """
A cache found `found` of `tries` needles. The share `p` that it would find of very many is not
known; `found / tries` is only a guess.

Take the 95 % interval of Wilson: all `p` for which the share found lies within `z = 1.96` standard
deviations of `p`, that is `(found / tries - p) ** 2 <= z ** 2 * p * (1 - p) / tries`.

**Return its two ends `(low, high)`.** They are the two solutions of a quadratic equation in `p`.
"""

STUB = """
def interval(found, tries, z=1.96):
    share = found / tries
    half = z * (share * (1 - share) / tries) ** 0.5
    return share - half, share + half
"""

SOLUTION = """
def interval(found, tries, z=1.96):
    share, w = found / tries, z * z / tries
    middle = (share + w / 2) / (1 + w)
    half = (w * share * (1 - share) + w * w / 4) ** 0.5 / (1 + w)
    return middle - half, middle + half
"""

WRONG = (
    # Certain after twelve of twelve.
    STUB,
    # The right middle with the wrong width.
    SOLUTION.replace(" + w * w / 4", ""),
    # The right width around the guess.
    SOLUTION.replace("(share + w / 2) / (1 + w)", "share"),
)

CASES = ((12, 12), (0, 12), (6, 12), (11, 12), (1, 1), (190, 200))


def _right(found, tries):
    """Halves the distance to where the share found is 1.96 standard deviations away."""
    share, ends = found / tries, []
    for outside in (0.0, 1.0):
        inside = share
        for _ in range(60):
            p = (inside + outside) / 2
            near = (share - p) ** 2 <= 1.96**2 * p * (1 - p) / tries
            inside, outside = (p, outside) if near else (inside, p)
        ends.append(inside)
    return ends


def check(answer):
    for found, tries in CASES:
        low, high = _right(found, tries)
        got = answer(found, tries)
        pair = isinstance(got, tuple | list) and len(got) == 2
        if not pair or abs(got[0] - low) > 1e-6 or abs(got[1] - high) > 1e-6:
            expected = f"({low:.4f}, {high:.4f})"
            return f"interval({found}, {tries}) should be {expected}, but yours gave {got!r}."
    return None
