"""Addresses in a cache whose rows are aligned: padded stride, logical width."""

TASK = """
One head of a cache holds rows of `width` numbers of `itemsize` bytes each. The first row starts at
address `base`, which is aligned. Every row must start at a multiple of `alignment` bytes.

**Return the half-open ranges of bytes that hold the numbers of the rows in `rows`**, as a list of
`(start, end)`.

- the stride between rows is the row rounded up to the alignment, in **bytes**;
- a row keeps its logical width: the padding behind it is not part of it;
- if a row is not there (negative, or `num_rows` and beyond), raise `IndexError`: a negative number
  would be the address of somebody else.
"""

STUB = """
def row_ranges(rows, width, itemsize, alignment, base, num_rows):
    ...
"""

SOLUTION = """
def row_ranges(rows, width, itemsize, alignment, base, num_rows):
    if any(not 0 <= row < num_rows for row in rows):
        raise IndexError(f"rows are 0 to {num_rows - 1}, asked for {rows}")
    row_bytes = width * itemsize
    stride = -(-row_bytes // alignment) * alignment
    return [
        (base + row * stride, base + row * stride + row_bytes) for row in rows
    ]
"""

WRONG = (
    # The outline's: aligns numbers, not bytes.
    SOLUTION.replace(
        "-(-row_bytes // alignment) * alignment", "-(-width // alignment) * alignment * itemsize"
    ),
    # The payload as stride: every row but the first is out of line.
    SOLUTION.replace("-(-row_bytes // alignment) * alignment", "row_bytes"),
    # Adds a whole alignment to rows that need none.
    SOLUTION.replace("-(-row_bytes // alignment)", "(row_bytes // alignment + 1)"),
    # Rounds down, so that rows overlap.
    SOLUTION.replace("-(-row_bytes // alignment)", "max(1, row_bytes // alignment)"),
    # Hands out the padding too.
    SOLUTION.replace("row * stride + row_bytes)", "(row + 1) * stride)"),
    # Forgets where the cache begins.
    SOLUTION.replace("(base + ", "("),
    # Lets negative rows through.
    SOLUTION.replace("not 0 <= row < num_rows", "row >= num_rows"),
    # Counts one row too many.
    SOLUTION.replace("< num_rows for", "<= num_rows for"),
    STUB,
)

CASES = (
    (([0, 1, 9], 24, 4, 64, 0, 10), [(0, 96), (128, 224), (1152, 1248)], "96 bytes, 128 apart"),
    (([1, 2], 96, 2, 256, 4096, 8), [(4352, 4544), (4608, 4800)], "192 bytes, 256 apart"),
    (([3], 128, 2, 256, 0, 4), [(768, 1024)], "256 bytes are aligned already"),
    (([1], 100, 4, 16, 64, 2), [(464, 864)], "400 bytes are a multiple of 16"),
    (([1], 100, 2, 16, 0, 2), [(208, 408)], "200 bytes become 208"),
    (([2, 0], 3, 1, 64, 128, 3), [(256, 259), (128, 131)], "a row shorter than its alignment"),
    (([], 24, 4, 64, 0, 10), [], "no rows, no ranges"),
)
REFUSED = (([-1], 24, 4, 64, 0, 10), ([0, 10], 24, 4, 64, 0, 10))


def check(answer):
    for (rows, *rest), expected, why in CASES:
        got = answer(list(rows), *rest)
        if got != expected:
            given = ", ".join(map(str, (rows, *rest)))
            return f"row_ranges({given}) should be {expected} ({why}), but yours gave {got!r}."
    for rows, *rest in REFUSED:
        given = ", ".join(map(str, (rows, *rest)))
        try:
            got = answer(list(rows), *rest)
        except IndexError:
            continue
        return f"row_ranges({given}) should be refused with IndexError, but yours gave {got!r}."
    return None
