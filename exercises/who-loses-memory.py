"""Who is preempted so that a running request can grow, and what each of them computes again."""

TASK = """
**Return who loses memory, and how many tokens are computed again.** `running` holds
`(name, computed)` in the order they began; each has the whole blocks of `size` tokens that its
computed tokens need, and `free` blocks are left. The request `grower` needs one block more.

While no block is free, the one that **began last** loses all its blocks; that may be the grower
itself, and then nothing more is needed. Return `(names, again)`: the victims in the order they lose
their memory, and how many tokens they will compute again. Their **whole** blocks stay in the prefix
cache and are found when they come back; only what stood in a partly filled block is lost.
"""

STUB = """
def losses(running, free, grower, size):
    ...
"""

SOLUTION = """
def losses(running, free, grower, size):
    running, names, again = list(running), [], 0
    while free == 0:
        name, computed = running.pop()
        names.append(name)
        again += computed % size
        if name == grower:
            break
        free += -(-computed // size)
    return names, again
"""

WRONG = (
    STUB,
    # The first to begin loses.
    SOLUTION.replace("running.pop()", "running.pop(0)"),
    # Forgets the prefix cache.
    SOLUTION.replace("computed % size", "computed"),
    # Counts what is found instead of what is lost.
    SOLUTION.replace("computed % size", "computed - computed % size"),
    # Somebody always loses.
    SOLUTION.replace("while free == 0:", "while True:").replace(
        "        free +=", "        if True:\n            break\n        free +="
    ),
    # Somebody else must lose, never the grower.
    SOLUTION.replace(
        "        name, computed = running.pop()\n",
        "        running = [each for each in running if each[0] != grower]\n"
        "        name, computed = running.pop()\n",
    ),
    # The grower gives up in vain and the next one loses too.
    SOLUTION.replace("        if name == grower:\n            break\n", "").replace(
        "free += -(-computed // size)", "free += (-(-computed // size)) * (name != grower)"
    ),
)

CASES = (
    (([("a", 8), ("b", 10), ("c", 3)], 0, "a", 4), (["c"], 3), "step 4 above"),
    (([("a", 11), ("b", 12)], 0, "b", 4), (["b"], 0), "step 6 above: b loses its own"),
    (([("a", 8), ("b", 10)], 1, "a", 4), ([], 0), "a block is free"),
    (([("a", 8), ("b", 10)], 0, "a", 4), (["b"], 2), "two of b's tokens stood in a third block"),
    (([("a", 16), ("b", 6), ("c", 9)], 0, "b", 4), (["c"], 1), "c gives enough"),
    (([("a", 32)], 0, "a", 16), (["a"], 0), "alone, it can only take from itself"),
    (([("a", 5), ("b", 7)], 0, "a", 1), (["b"], 0), "blocks of one token are always whole"),
)


def lists(got):
    return [lists(each) for each in got] if isinstance(got, (list, tuple)) else got


def check(answer):
    for args, expected, why in CASES:
        running, *rest = args
        got = answer(list(running), *rest)
        if lists(got) != lists(expected):
            return f"losses{args} should return {expected} ({why}), but yours gave {got!r}."
    return None
