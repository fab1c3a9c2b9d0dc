"""How many bytes are left of a cache when several techniques are used at once."""

TASK = """
A model has `layers` layers with `q_heads` query heads each. Plain multi-head attention would keep a
key and a value for each of them, in 16 bits.

Three techniques are used at once:

- every layer keeps `kv_heads` key and value heads in place of `q_heads`;
- `local` of the layers see only the last `window` tokens, and keep no more;
- a number takes `bits` bits, scales counted in.

**Return the share of the bytes that is left for a text of `tokens` tokens**: bytes with all three,
divided by bytes with none.
"""

STUB = """
def left(layers, q_heads, kv_heads, local, window, bits, tokens):
    return kv_heads / q_heads * bits / 16 * window / tokens
"""

SOLUTION = """
def left(layers, q_heads, kv_heads, local, window, bits, tokens):
    kept = (layers - local) * tokens + local * min(window, tokens)
    return kv_heads / q_heads * bits / 16 * kept / (layers * tokens)
"""

WRONG = (
    STUB,
    # A text shorter than the window is no reason to keep more than it has.
    SOLUTION.replace("min(window, tokens)", "window"),
    # All layers are local.
    SOLUTION.replace("(layers - local) * tokens + local", "layers"),
    # Savings are added up.
    SOLUTION.replace("kv_heads / q_heads * bits / 16 *", "(kv_heads / q_heads + bits / 16) / 2 *"),
)

CASES = (
    # Nothing saved; heads alone; bits alone.
    (30, 9, 9, 0, 1, 16, 512),
    (30, 9, 3, 0, 1, 16, 512),
    (30, 9, 9, 0, 1, 4.5, 512),
    # Windows: longer than the text, on all layers, on five of six.
    (24, 8, 8, 24, 1024, 16, 100),
    (24, 8, 8, 24, 128, 16, 4096),
    (62, 32, 16, 52, 1024, 8.125, 131_072),
)


def check(answer):
    for case in CASES:
        layers, q_heads, kv_heads, local, window, bits, tokens = case
        kept = (layers - local) * tokens + local * min(window, tokens)
        right = kv_heads * bits * kept / (q_heads * 16 * layers * tokens)
        got = answer(*case)
        if not isinstance(got, int | float) or abs(got - right) > 1e-9:
            return f"left{case} should be {right:.6f}, but yours gave {got!r}."
    return None
