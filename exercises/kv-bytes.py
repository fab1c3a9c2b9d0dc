"""Repair the size formula of the outline: layers and KV heads are missing."""

TASK = """
This function should return the bytes of keys and values that a batch of equal sequences keeps, but
it takes one layer for the whole model and one head for all of them. **Repair it.**

- every layer keeps keys and values of its own;
- so does every KV head in a layer;
- a key and a value are each `head_dim` elements wide.
"""

STUB = """
def kv_bytes(num_layers, num_kv_heads, head_dim, num_tokens,
             num_sequences, bytes_per_element):
    per_token = head_dim * 2 * bytes_per_element
    return num_tokens * num_sequences * per_token
"""

SOLUTION = """
def kv_bytes(num_layers, num_kv_heads, head_dim, num_tokens,
             num_sequences, bytes_per_element):
    per_token = 2 * num_layers * num_kv_heads * head_dim * bytes_per_element
    return num_tokens * num_sequences * per_token
"""

WRONG = (
    STUB,
    # The layers are still missing.
    STUB.replace("head_dim * 2", "num_kv_heads * head_dim * 2"),
    # The KV heads are still missing.
    STUB.replace("head_dim * 2", "num_layers * head_dim * 2"),
    # Keys only.
    SOLUTION.replace("2 * num_layers", "num_layers"),
    # The batch counts once, whatever its size.
    SOLUTION.replace(" * num_sequences", ""),
)

# The first is small enough for the hand: 2 x 3 layers x 5 heads x 4 wide x 7 tokens x 2 bytes.
CASES = (
    ((3, 5, 4, 7, 1, 2), 1680),
    ((32, 8, 128, 8192, 1, 2), 2**30),
    ((40, 40, 128, 2048, 7, 2), 11_744_051_200),
    ((1, 1, 1, 1, 1, 1), 2),
    ((80, 8, 128, 1000, 3, 1), 491_520_000),
)


def _hint(args, expected, got):
    factors = {
        args[0]: "the layers seem to be missing",
        args[1]: "the KV heads seem to be missing",
        args[0] * args[1]: "layers and KV heads seem to be missing",
        2: "keys and values are two rows, not one",
    }
    ratio = expected / got if isinstance(got, (int, float)) and got else None
    return f" ({factors[ratio]})" if ratio in factors else ""


def check(answer):
    for args, expected in CASES:
        got = answer(*args)
        if got != expected:
            hint = _hint(args, expected, got)
            return f"kv_bytes{args} should be {expected}, but yours gave {got!r}{hint}."
    return None
