"""How many bytes a way to attend over blocks moves."""

TASK = """
One decode step: `lens` are the tokens of each sequence, `row_bytes` what the keys and values of one
token take, blocks have `block_size` tokens. **Return the bytes that a way moves:**

- `"in place"` reads the keys and values of every token once, where they lie;
- `"gather"` copies all of a sequence's **whole blocks** into one run (reads them, writes them), and
  attends to what it copied: of that it reads the tokens there are, not the rest of the last block;
- `"block by block"` takes the first block of every sequence, then the second, and so on, until the
  **longest** is through. A round copies one block for every sequence, also for one that has ended,
  and attends to the whole copy. An empty sequence takes no part.
"""

STUB = """
def moved(way, lens, block_size, row_bytes):
    return 3 * sum(lens) * row_bytes
"""

SOLUTION = """
def moved(way, lens, block_size, row_bytes):
    if way == "in place":
        return sum(lens) * row_bytes
    blocks = [-(-n // block_size) for n in lens if n]
    if way == "gather":
        return (2 * sum(blocks) * block_size + sum(lens)) * row_bytes
    return 3 * len(blocks) * max(blocks, default=0) * block_size * row_bytes
"""

WRONG = (
    STUB,
    # Forgets that whole blocks are copied.
    SOLUTION.replace("2 * sum(blocks) * block_size + sum(lens)", "3 * sum(lens)"),
    # Reads the rest of the last block too.
    SOLUTION.replace("2 * sum(blocks) * block_size + sum(lens)", "3 * sum(blocks) * block_size"),
    # Lets a sequence that has ended rest.
    SOLUTION.replace("len(blocks) * max(blocks, default=0)", "sum(blocks)"),
    # An empty sequence takes part.
    SOLUTION.replace("len(blocks) * max", "len(lens) * max"),
    # Rounds blocks down.
    SOLUTION.replace("-(-n // block_size)", "n // block_size"),
    # A copy is only written.
    SOLUTION.replace("2 * sum(blocks)", "sum(blocks)").replace("3 * len", "2 * len"),
)

CASES = (
    ([5], 2, 8),
    ([4], 4, 100),
    ([1, 16, 17], 16, 512),
    ([1, 16, 17, 511, 0, 300], 16, 512),
    ([0, 0], 16, 512),
    ([3, 0, 9], 4, 10),
)


def _expected(way, lens, block_size, row_bytes):
    held = [n for n in lens if n > 0]
    if way == "in place":
        return row_bytes * sum(held)
    blocks = [(n + block_size - 1) // block_size for n in held]
    copied = sum(blocks) if way == "gather" else len(held) * max([0, *blocks])
    attended = sum(held) if way == "gather" else copied * block_size
    return row_bytes * (2 * copied * block_size + attended)


def check(answer):
    for way in ("in place", "gather", "block by block"):
        for case in CASES:
            expected = _expected(way, *case)
            try:
                got = answer(way, *case)
            except (ArithmeticError, ValueError) as error:
                got = error
            if got != expected:
                lens, block_size, row_bytes = case
                return (
                    f"moved({way!r}, lens={lens}, block_size={block_size}, row_bytes={row_bytes})"
                    f" should be {expected}, but yours gave {got!r}."
                )
    return None
