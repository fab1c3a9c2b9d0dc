"""Bytes of a row of codes with its scales: packing, padding, minima."""

TASK = """
The row of a token has `head_dim` codes of `bits` bits, packed into whole bytes. Behind them stand a
scale for each group of `group` codes and, if `minimum` is true, as many minima, each of
`scale_bytes` bytes. The first scale must begin at a multiple of `scale_bytes`. **Return the bytes
of the row**, or raise a `ValueError` if the groups do not divide the row.
"""

STUB = """
def row_bytes(head_dim, bits, group, scale_bytes, minimum):
    codes = head_dim * bits // 8
    scales = head_dim // group
    return codes + scales * scale_bytes
"""

SOLUTION = """
def row_bytes(head_dim, bits, group, scale_bytes, minimum):
    if head_dim % group:
        raise ValueError(f"groups of {group} do not divide a row of {head_dim}")
    codes = -(-head_dim * bits // 8)
    first_scale = -(-codes // scale_bytes) * scale_bytes
    stored = head_dim // group * (2 if minimum else 1)
    return first_scale + stored * scale_bytes
"""

WRONG = (
    STUB,
    # The minima are forgotten.
    SOLUTION.replace("2 if minimum else 1", "1"),
    # The last code of an odd row is cut off.
    SOLUTION.replace("-(-head_dim * bits // 8)", "head_dim * bits // 8"),
    # A scale may begin anywhere.
    SOLUTION.replace("-(-codes // scale_bytes) * scale_bytes", "codes"),
    # Groups that do not divide are rounded down.
    SOLUTION.replace("if head_dim % group:", "if False:"),
)

# Rows of four bits with a float16: 3, 3, 32 and 40 bytes of codes, the scale at 4, 4, 32 and 40.
CASES = (
    ((5, 4, 5, 2, False), 6),
    ((6, 4, 6, 2, False), 6),
    ((64, 4, 64, 2, False), 34),
    ((80, 4, 80, 2, False), 42),
    ((128, 4, 128, 2, True), 68),
    ((128, 8, 32, 2, False), 136),
    ((64, 2, 32, 2, True), 24),
    ((6, 2, 3, 4, True), 20),
    ((7, 8, 7, 1, False), 8),
)
REFUSED = ((64, 4, 48, 2, True), (5, 4, 2, 2, False))


def check(answer):
    for args, expected in CASES:
        got = answer(*args)
        if got != expected:
            return f"row_bytes{args} should be {expected}, but yours gave {got!r}."
    for args in REFUSED:
        try:
            got = answer(*args)
        except ValueError:
            continue
        return f"row_bytes{args} should be a ValueError, but yours gave {got!r}."
    return None
