"""How many users' caches fit beside the weights."""

TASK = """
A card holds the weights first; what is left holds the caches. **Return how many users fit**, each
with `num_tokens` tokens of `bytes_per_token` bytes.

- a user fits whole or not at all;
- where the weights alone do not fit, nobody does;
- all numbers are whole, and large: stay with whole numbers.
"""

STUB = """
def users_that_fit(memory_bytes, weight_bytes, bytes_per_token, num_tokens):
    ...
"""

SOLUTION = """
def users_that_fit(memory_bytes, weight_bytes, bytes_per_token, num_tokens):
    left = memory_bytes - weight_bytes
    return max(0, left // (bytes_per_token * num_tokens))
"""

WRONG = (
    # Forgets the weights.
    "def users_that_fit(memory, weights, per_token, num_tokens):\n"
    "    return memory // (per_token * num_tokens)\n",
    # Rounds to the nearest user.
    "def users_that_fit(memory, weights, per_token, num_tokens):\n"
    "    return max(0, round((memory - weights) / (per_token * num_tokens)))\n",
    # Seats a negative number of users.
    "def users_that_fit(memory, weights, per_token, num_tokens):\n"
    "    return (memory - weights) // (per_token * num_tokens)\n",
    # A float cannot tell these whole numbers apart.
    "def users_that_fit(memory, weights, per_token, num_tokens):\n"
    "    return max(0, int((memory - weights) / (per_token * num_tokens)))\n",
    STUB,
)

CASES = (
    ((100, 40, 5, 4), 3, "60 bytes are left, and a user takes 20"),
    ((100, 41, 5, 4), 2, "59 bytes are left, and a user takes 20"),
    ((100, 120, 5, 4), 0, "the weights alone do not fit"),
    ((100, 100, 5, 4), 0, "nothing is left"),
    ((80 * 10**9, 16_060_000_000, 131_072, 131_072), 3, "Llama-3-8B, 128K tokens, 80 GB"),
    ((80 * 10**9, 140 * 10**9, 327_680, 131_072), 0, "a 70B model does not fit in 80 GB"),
    ((10**18 - 1, 0, 10**9, 10**8), 9, "one byte short of ten users"),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            return f"users_that_fit{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
