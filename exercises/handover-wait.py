"""How long decoding waits for keys and values that are sent layer by layer."""

TASK = """
A prompt's keys and values are sent to another machine **layer by layer**: a layer may leave as soon
as it has been computed and the layer before it has left. All layers take equally long to compute,
and equally long to send. Return the seconds from the end of the prefill to the arrival of the last
layer.

- `prompt_tokens` of `token_bytes` each, all layers together; the link carries `gb_s` times 10⁹
  bytes a second.
- The prefill takes `prefill_s` seconds and has `num_layers` layers.
"""

STUB = """
def wait(prompt_tokens, token_bytes, gb_s, prefill_s, num_layers):
    return prompt_tokens * token_bytes / (gb_s * 1e9)
"""

SOLUTION = """
def wait(prompt_tokens, token_bytes, gb_s, prefill_s, num_layers):
    layer_s = prompt_tokens * token_bytes / (gb_s * 1e9) / num_layers
    gap_s = prefill_s / num_layers
    return layer_s + (num_layers - 1) * max(0, layer_s - gap_s)
"""

WRONG = (
    STUB,
    # Hides everything behind the prefill.
    "def wait(n, b, g, prefill_s, layers):\n    return max(0, n * b / (g * 1e9) - prefill_s)\n",
    # Always waits for one layer only.
    "def wait(n, b, g, prefill_s, layers):\n    return n * b / (g * 1e9) / layers\n",
    # Forgets the last layer.
    SOLUTION.replace("return layer_s + ", "return "),
    # Hides one layer too many.
    SOLUTION.replace("(num_layers - 1)", "num_layers"),
    "def wait(*asked):\n    return float('nan')\n",
    # GiB in place of GB.
    SOLUTION.replace("1e9", "2**30"),
)

CASES = (
    (1000, 131_072, 12.5, 0.128, 32),
    (1000, 131_072, 1.0, 0.128, 32),
    (1000, 131_072, 0.25, 0.128, 32),
    (4096, 524_288, 25.0, 0.05, 32),
    (8, 1_000_000_000, 1.0, 4.0, 4),
    (8, 1_000_000_000, 1.0, 8.0, 4),
    (500, 70_272, 50.0, 0.01, 1),
)


def _expected(prompt_tokens, token_bytes, gb_s, prefill_s, num_layers):
    send_s, left = prompt_tokens * token_bytes / (gb_s * 1e9) / num_layers, 0.0
    for layer in range(num_layers):
        left = max(left, prefill_s * (layer + 1) / num_layers) + send_s
    return left - prefill_s


def check(answer):
    for case in CASES:
        got, expected = answer(*case), _expected(*case)
        close = isinstance(got, (int, float)) and abs(got - expected) <= 1e-6 * expected + 1e-9
        if not close:  # NaN is close to nothing
            return f"wait{case} should return {expected:.6f} s, yours gave {got!r}."
    return None
