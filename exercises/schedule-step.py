"""One step of a scheduler: who computes how many tokens, under a token budget."""

TASK = """
**Return what one step computes**, as a list of `(name, tokens)`, each with at least one token.

- `running` holds `(name, known, computed)` in the order they began. Each computes what it has left,
  as far as the `budget` goes. Their memory is large enough.
- Then those `waiting` begin, `(name, prompt)` in order of arrival, with what is left of the budget.
  One begins only if blocks for its **whole** prompt are free, `block_size` tokens each; it may
  compute a part of the prompt. Nobody overtakes: if one cannot begin, nobody behind it does.
"""

STUB = """
def schedule_step(running, waiting, budget, free_blocks, block_size):
    ...
"""

SOLUTION = """
def schedule_step(running, waiting, budget, free_blocks, block_size):
    work = []
    for name, known, computed in running:
        n = min(known - computed, budget)
        if n > 0:
            work.append((name, n))
            budget -= n
    for name, prompt in waiting:
        blocks = -(-prompt // block_size)
        if budget == 0 or blocks > free_blocks:
            break
        n = min(prompt, budget)
        work.append((name, n))
        budget -= n
        free_blocks -= blocks
    return work
"""

WRONG = (
    STUB,
    # Every running request decodes; a prompt that was begun never ends.
    SOLUTION.replace("min(known - computed, budget)", "min(1, budget)"),
    # Running requests may pass the budget.
    SOLUTION.replace("min(known - computed, budget)", "known - computed"),
    # A newcomer whose prompt fits overtakes one whose prompt does not.
    SOLUTION.replace("            break", "            continue"),
    # Takes blocks for the first chunk only.
    SOLUTION.replace("-(-prompt // block_size)", "-(-min(prompt, budget) // block_size)"),
    # Rounds down.
    SOLUTION.replace("-(-prompt // block_size)", "prompt // block_size"),
    # Gives one block to two.
    SOLUTION.replace("        free_blocks -= blocks\n", ""),
    # Never cuts a prompt.
    SOLUTION.replace("budget == 0 or", "budget < prompt or"),
    # Lets them begin without a token.
    SOLUTION.replace("budget == 0 or ", ""),
)

CASES = (
    (([("a", 7, 6)], [], 8, 3, 4), [("a", 1)], "a decodes"),
    (([], [("a", 6), ("b", 3), ("c", 4)], 8, 5, 4), [("a", 6), ("b", 2)], "the first step above"),
    (
        ([("a", 7, 6), ("b", 3, 2)], [("c", 4)], 8, 2, 4),
        [("a", 1), ("b", 1), ("c", 4)],
        "the second step above",
    ),
    (([("a", 9, 2)], [("b", 3)], 4, 5, 4), [("a", 4)], "a prompt that was begun takes it all"),
    (([("a", 9, 8), ("b", 5, 4)], [], 1, 5, 4), [("a", 1)], "a budget of one token"),
    (([], [("a", 9), ("b", 2)], 16, 2, 4), [], "a needs three blocks, b must not overtake"),
    (([], [("a", 9)], 4, 2, 4), [], "a chunk would fit, the whole prompt would not"),
    (([], [("a", 5), ("b", 4)], 16, 2, 4), [("a", 5)], "a takes both blocks"),
    (([], [("a", 5), ("b", 4)], 16, 3, 4), [("a", 5), ("b", 4)], "three blocks for both"),
    (([("a", 4, 4)], [("b", 2)], 4, 1, 4), [("b", 2)], "a has nothing to compute"),
)


def check(answer):
    for args, expected, why in CASES:
        running, waiting, *rest = args
        got = answer(list(running), list(waiting), *rest)
        if not isinstance(got, list) or [tuple(each) for each in got] != expected:
            return f"schedule_step{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
