"""How many entries of a cache are still right after the text or the model has changed."""

TASK = """
A cache holds the keys and values of the tokens `cached`, one entry a token. Now the model is to
read the tokens `wanted`. **Return how many entries, counted from the first, are still right in
every layer** and need not be computed again. The model has many layers.

- `causal`: whether the model has a causal mask. Without one, every token has seen all others;
- `moved`: by how many places the positions of the tokens have moved since they were written;
- `same_weights`: False if the weights have been changed since, by an adapter for instance.
"""

STUB = """
def still_right(cached, wanted, causal, moved, same_weights):
    ...
"""

SOLUTION = """
def still_right(cached, wanted, causal, moved, same_weights):
    if moved or not same_weights:
        return 0
    if not causal:
        return len(cached) if cached == wanted else 0
    count = 0
    for old, new in zip(cached, wanted):
        if old != new:
            break
        count += 1
    return count
"""

WRONG = (
    # Counts equal tokens behind a changed one.
    SOLUTION.replace("            break\n", "            continue\n"),
    # Takes a cache for right whatever the mask.
    SOLUTION.replace("if not causal", "if False"),
    # Trusts an appended token not to reach back.
    SOLUTION.replace("cached == wanted", "wanted[: len(cached)] == cached"),
    # Throws everything away without a mask, even where nothing has changed.
    SOLUTION.replace("len(cached) if cached == wanted else 0", "0"),
    # Forgets the weights.
    SOLUTION.replace("moved or not same_weights", "moved"),
    # Forgets the positions.
    SOLUTION.replace("moved or not same_weights", "not same_weights"),
    # Notices a move to the right only.
    SOLUTION.replace("moved or", "moved > 0 or"),
    # All or nothing.
    "def still_right(cached, wanted, causal, moved, same_weights):\n"
    "    exact = causal and not moved and same_weights and wanted[: len(cached)] == cached\n"
    "    return len(cached) if exact else 0\n",
    STUB,
)

CASES = (
    (([5, 6, 7], [5, 6, 7, 8], True, 0, True), 3, "a token is appended, and nothing looks ahead"),
    (([5, 6, 7], [5, 6, 7, 8], False, 0, True), 0, "without a mask the others see the new token"),
    (([5, 6, 7], [5, 6, 7], False, 0, True), 3, "nothing has changed, so a mask is not needed"),
    (([5, 6, 7, 8], [5, 9, 7, 8], True, 0, True), 1, "7 and 8 have seen the token before them"),
    (([5, 6, 7, 8], [5, 9, 7, 8], False, 0, True), 0, "everybody has seen the replaced token"),
    (([5, 6, 7], [6, 7], True, -1, True), 0, "the first token is dropped and the rest renumbered"),
    (([5, 6, 7], [5, 6, 7, 8], True, 1, True), 0, "keys were turned for other positions"),
    (([5, 5, 5], [5, 5], True, -1, True), 0, "the tokens agree, their positions do not"),
    (([5, 6, 7], [5, 6, 7], True, 0, False), 0, "other weights make other keys"),
    (([5, 6, 7], [5, 6], True, 0, True), 2, "a shorter text keeps its entries"),
    (([5, 6, 7], [5, 6], False, 0, True), 0, "without a mask 5 and 6 have seen 7"),
    (([], [5], True, 0, True), 0, "nothing was kept"),
    (([5], [6], True, 0, True), 0, "the very first token differs"),
)


def check(answer):
    for (cached, wanted, *rest), expected, why in CASES:
        args = (list(cached), list(wanted), *rest)
        got = answer(*args)
        if got != expected or isinstance(got, bool):
            return (
                f"still_right{(cached, wanted, *rest)} should be {expected} ({why}), "
                f"but yours gave {got!r}."
            )
    return None
