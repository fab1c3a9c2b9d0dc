"""How many tokens go through the model, with and without a cache."""

TASK = """
A prompt of `prompt` tokens, then `new` tokens are generated, one a step. **Return how many tokens
go through the model in all**, with a cache (`cached=True`) and without.

- the first step forwards the prompt and gives the first new token;
- with a cache, every later step forwards only the newest token;
- without, every step forwards everything there is;
- nobody forwards the last new token: generation stops with it.
"""

STUB = """
def token_forwards(prompt, new, cached):
    ...
"""

SOLUTION = """
def token_forwards(prompt, new, cached):
    if new == 0:
        return 0
    if cached:
        return prompt + new - 1
    return new * prompt + new * (new - 1) // 2
"""

WRONG = (
    # Forwards the last token too.
    SOLUTION.replace("prompt + new - 1", "prompt + new"),
    # Counts the prompt as one token.
    SOLUTION.replace("prompt + new - 1", "new"),
    # Sums to new instead of new - 1.
    SOLUTION.replace("(new - 1)", "(new + 1)"),
    # A step for a token nobody asked for.
    SOLUTION.replace("if new == 0", "if new < 0"),
    STUB,
)

CASES = (
    ((4, 1, True), 4, "the prompt, once"),
    ((4, 1, False), 4, "the first step is the same without a cache"),
    ((4, 3, True), 6, "4 + 1 + 1"),
    ((4, 3, False), 15, "4 + 5 + 6"),
    ((1, 1024, True), 1024, "n for n steps from one token"),
    ((1, 1024, False), 524_800, "n(n+1)/2 for n steps from one token"),
    ((7, 0, True), 0, "nothing is generated, so nothing is forwarded"),
    ((7, 0, False), 0, "nothing is generated, so nothing is forwarded"),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            return f"token_forwards{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
