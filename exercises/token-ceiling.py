"""The most tokens a second that a card's bandwidth lets a batch decode."""

TASK = """
Every decode step reads all `weight_bytes` once, and for each of `batch` sequences the keys and
values of its `context` tokens, `bytes_per_token` each. The card moves `bandwidth` bytes a second.
**Return the most tokens a second that bandwidth allows, all sequences together.**
"""

STUB = """
def token_ceiling(weight_bytes, bytes_per_token, context, batch, bandwidth):
    bytes_of_a_step = ...
    return ...
"""

SOLUTION = """
def token_ceiling(weight_bytes, bytes_per_token, context, batch, bandwidth):
    bytes_of_a_step = weight_bytes + batch * context * bytes_per_token
    return batch * bandwidth / bytes_of_a_step
"""

WRONG = (
    # Every sequence reads the weights for itself.
    SOLUTION.replace("= weight_bytes +", "= batch * weight_bytes +"),
    # All sequences share one cache.
    SOLUTION.replace("+ batch * context", "+ context"),
    # Steps a second, not tokens.
    SOLUTION.replace("return batch * bandwidth", "return bandwidth"),
    # Forgets the cache.
    SOLUTION.replace(" + batch * context * bytes_per_token", ""),
    STUB,
)

CASES = (
    ((100, 1, 10, 1, 1100), 10.0, "110 bytes a step, 10 steps a second, a token each"),
    ((100, 1, 10, 10, 1000), 50.0, "weights once, ten caches: 200 bytes for ten tokens"),
    ((100, 1, 0, 4, 50), 2.0, "no cache yet: half a step a second, four tokens each"),
    ((0, 5, 20, 3, 100), 1.0, "without weights a batch gains nothing: each reads its own cache"),
    (
        (16_060_000_000, 131_072, 8192, 1, 3.35e12),
        3.35e12 / (16_060_000_000 + 131_072 * 8192),
        "Llama-3-8B on an H100, one sequence of 8,192 tokens",
    ),
    (
        (16_060_000_000, 131_072, 8192, 32, 4.8e12),
        32 * 4.8e12 / (16_060_000_000 + 32 * 131_072 * 8192),
        "Llama-3-8B on an H200, 32 sequences of 8,192 tokens",
    ),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if not isinstance(got, (int, float)) or abs(got - expected) > 1e-9 * expected:
            shown = f"token_ceiling{args} should be {expected:.6g} ({why})"
            return f"{shown}, but yours gave {got!r}."
    return None
