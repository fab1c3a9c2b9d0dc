"""Repair a quantiser that divides by zero and reads back with another step than it wrote with."""

TASK = """
`quantize` should write a group of numbers as codes of a few bits. It keeps the smallest number and
a step, and the step is stored as a power of two. **Repair it**, so that

- a group of equal numbers comes back exactly, whatever it is;
- every number comes back within half of the *stored* step: codes are made with the step that will
  read them.

It returns the codes, the smallest number and the stored step; `low + step * code` reads them back.
Codes lie in `[0, 2**bits - 1]`.
"""

STUB = """
from math import ceil, log2


def quantize(numbers, bits):
    low = min(numbers)
    step = (max(numbers) - low) / (2**bits - 1)
    codes = [round((x - low) / step) for x in numbers]
    return codes, low, 2.0 ** ceil(log2(step))
"""

SOLUTION = """
from math import ceil, log2


def quantize(numbers, bits):
    low = min(numbers)
    if max(numbers) == low:
        return [0] * len(numbers), low, 1.0
    step = 2.0 ** ceil(log2((max(numbers) - low) / (2**bits - 1)))
    codes = [round((x - low) / step) for x in numbers]
    return codes, low, step
"""

WRONG = (
    STUB,
    # Equal numbers are caught, and the others still coded with the exact step.
    STUB.replace(
        "    step = (max",
        "    if max(numbers) == low:\n        return [0] * len(numbers), low, 1.0\n    step = (max",
    ),
    # The stored step is used, and equal numbers still divide by zero.
    SOLUTION.replace(
        "    if max(numbers) == low:\n        return [0] * len(numbers), low, 1.0\n", ""
    ),
    # Equal numbers come back as zero.
    SOLUTION.replace("len(numbers), low, 1.0", "len(numbers), 0.0, 1.0"),
    # A step too short for the group: the largest number needs a code that there is not.
    SOLUTION.replace("2.0 ** ceil(", "2.0 ** int("),
)

# The second is for the hand: the exact step is 10 / 3, the stored one 4, so 10 is code 2 or 3.
CASES = (
    ([0, 15, 7, 3], 4),
    ([0, 10, 4], 2),
    ([9, 9, 9], 4),
    ([-9, -9], 2),
    ([0, 0, 0], 8),
    ([-3.5, 2.25, 0.125, 8.0, -1.0], 4),
    ([1000.0, 1000.5, 1001.0], 8),
    ([-20, -10, -15, -12], 2),
    ([0, 50, 21], 4),
)


def check(answer):
    for numbers, bits in CASES:
        call = f"quantize({numbers}, {bits})"
        try:
            codes, low, step = answer(list(numbers), bits)
        except (ZeroDivisionError, ValueError) as error:
            return (
                f"{call} should be codes, the smallest number and a step, but yours gave {error}."
            )
        if len(codes) != len(numbers) or any(c not in range(2**bits) for c in codes):
            return f"{call} should be codes in [0, {2**bits - 1}] first, but yours gave {codes}."
        back = [low + step * code for code in codes]
        allowed = step / 2 if max(numbers) > min(numbers) else 0
        worst = max(abs(x - y) for x, y in zip(numbers, back, strict=True))
        if worst > allowed + 1e-9:
            return (
                f"{call} should be read back at most {allowed:g} off with a step of {step:g}, "
                f"but yours gave {back}, {worst:g} off."
            )
        needed = (max(numbers) - min(numbers)) / (2**bits - 1)
        if needed and step >= 2 * needed:
            return f"{call} should be done with a step of {step / 2:g}, but yours gave {step:g}."
    return None
