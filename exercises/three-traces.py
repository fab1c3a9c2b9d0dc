"""Which bound holds a step: read it from its trace."""

TASK = """
A trace of one step is a list of kernels `(name, start_us, end_us, num_bytes, flops)`. They run one
after the other on a card with `gb_s` GB/s and `tflops` TFLOP/s; between them the card may wait. The
step begins at 0 and takes `step_us`.

**Return what to work on:**

- `"overhead"`, if the card waits for more than half of the step;
- otherwise `"bandwidth"` or `"compute"`, whichever bounds the **kernel that takes the longest**:
  the longer of moving its bytes and doing its operations, `"bandwidth"` if they are equal.

1 GB/s is 1,000 bytes a microsecond, 1 TFLOP/s a million operations. Kernels of one name count
together: their times, bytes and operations add up before the longest is looked for. Of equally long
ones the first in the list counts. A step without kernels is overhead.
"""

STUB = """
def diagnose(kernels, step_us, gb_s, tflops):
    num_bytes = sum(kernel[3] for kernel in kernels)
    flops = sum(kernel[4] for kernel in kernels)
    moving, computing = num_bytes / (gb_s * 1e3), flops / (tflops * 1e6)
    return "bandwidth" if moving >= computing else "compute"
"""

SOLUTION = """
def diagnose(kernels, step_us, gb_s, tflops):
    together = {}
    for name, start, end, num_bytes, flops in kernels:
        sums = together.setdefault(name, [0, 0, 0])
        for i, amount in enumerate((end - start, num_bytes, flops)):
            sums[i] += amount
    busy = sum(time for time, _, _ in together.values())
    if step_us - busy > step_us / 2:
        return "overhead"
    _, num_bytes, flops = max(together.values(), key=lambda sums: sums[0])
    moving, computing = num_bytes / (gb_s * 1e3), flops / (tflops * 1e6)
    return "bandwidth" if moving >= computing else "compute"
"""

WRONG = (
    STUB,
    # Sees no waiting.
    SOLUTION.replace("step_us - busy > step_us / 2", "not kernels"),
    # Looks for gaps, and then at the sums of the whole step.
    STUB.replace(
        "    num_bytes",
        "    if not kernels or step_us - sum(k[2] - k[1] for k in kernels) > step_us / 2:\n"
        '        return "overhead"\n    num_bytes',
    ),
    # Kernels of one name are looked at one by one.
    SOLUTION.replace(
        "together.setdefault(name, [0, 0, 0])", "together.setdefault(start, [0, 0, 0])"
    ),
    # Half of the step already counts.
    SOLUTION.replace("> step_us / 2", ">= step_us / 2"),
    # The kernel with the most bytes instead of the longest.
    SOLUTION.replace("key=lambda sums: sums[0]", "key=lambda sums: sums[1]"),
    # Of equally long kernels the last one.
    SOLUTION.replace("max(together.values()", "max(reversed(together.values())"),
    # Swaps the units.
    SOLUTION.replace("gb_s * 1e3", "gb_s * 1e6"),
    # Equal is compute.
    SOLUTION.replace("moving >= computing", "moving > computing"),
)

DECODE = [(f"mm {i}", 10 * i, 10 * i + 9, 18_000_000, 18_000_000) for i in range(8)]
# All bytes take 55 us, all operations 50; the longest kernel has 25 us of bytes.
PREFILL = [("mm", 0, 70, 50_000_000, 50_000_000_000), ("copy", 70, 100, 60_000_000, 0)]
SMALL = [(f"add {i}", 10 * i, 10 * i + 4, 4_000_000, 1_000_000) for i in range(8)]
# One name, ten short calls, against one longer call of another.
MANY = [("norm", 6 * i, 6 * i + 5, 10_000_000, 1000) for i in range(10)]
MANY += [("mm", 60, 80, 1000, 18_000_000_000)]
EVEN = [("mm", 0, 50, 100_000_000, 50_000_000_000)]  # 50 us either way
HALF = [("mm", 0, 50, 1000, 50_000_000_000)]
TIE = [("copy", 0, 40, 80_000_000, 0), ("mm", 40, 80, 1000, 40_000_000_000)]
CASES = (
    ("decode", DECODE, 80, "bandwidth"),
    ("prefill", PREFILL, 100, "compute"),
    ("small kernels", SMALL, 90, "overhead"),
    ("many short calls", MANY, 85, "bandwidth"),
    ("both bounds alike", EVEN, 60, "bandwidth"),
    ("half of it waits", HALF, 100, "compute"),
    ("two equally long", TIE, 80, "bandwidth"),
    ("no kernel", [], 10, "overhead"),
)


def check(answer):
    for name, kernels, step_us, expected in CASES:
        try:
            got = answer(list(kernels), step_us, 2000, 1000)
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
        if got != expected:
            return (
                f"The trace {name!r}, of {step_us} us with {len(kernels)} kernels, should be "
                f"{expected!r} at 2,000 GB/s and 1,000 TFLOP/s, but yours gave {got!r}."
            )
    return None
