"""Bytes of a sequence from a model's published config, with the traps of real ones."""

TASK = """
A config says what a model's cache must hold; a formula that looks at too few of its fields is off
by a factor. **Return the bytes that a sequence of `num_tokens` keeps**, at two bytes an element.

- keys and values: `num_key_value_heads` rows of `head_dim` each. Without the first, every one of
  `num_attention_heads` has its own; without the second, it is
  `hidden_size // num_attention_heads`;
- where `kv_lora_rank` is given, *only* a latent of that width and one rotary key of
  `qk_rope_head_dim` are kept, whatever else it says;
- `layer_types`, if given, names each layer's type; a `"sliding_attention"` layer keeps at most
  `sliding_window` tokens, any other layer all of them (here a config without
  `layer_types` has no window either);
- the last `num_kv_shared_layers` layers, if given, read an earlier one and keep nothing.
"""

STUB = """
def sequence_bytes(config, num_tokens):
    if "sliding_window" in config:
        num_tokens = min(num_tokens, config["sliding_window"])
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    return 2 * 2 * layers * width * num_tokens
"""

SOLUTION = """
def sequence_bytes(config, num_tokens):
    layers = config["num_hidden_layers"]
    types = config.get("layer_types", ["full_attention"] * layers)
    owners = types[: layers - config.get("num_kv_shared_layers", 0)]
    if "kv_lora_rank" in config:
        elements = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        query_heads = config["num_attention_heads"]
        head_dim = config.get("head_dim", config["hidden_size"] // query_heads)
        elements = 2 * config.get("num_key_value_heads", query_heads) * head_dim
    window = config.get("sliding_window", num_tokens)
    rows = sum(
        min(num_tokens, window) if kind == "sliding_attention" else num_tokens
        for kind in owners
    )
    return 2 * rows * elements
"""

WRONG = (
    STUB,
    # One window for all layers, whether they use it or not.
    SOLUTION.replace('if kind == "sliding_attention" else num_tokens', ""),
    # A window that is not full yet is counted as full.
    SOLUTION.replace("min(num_tokens, window)", "window"),
    # A latent counted twice, as if it were a key and a value.
    SOLUTION.replace(
        'config["kv_lora_rank"] + config["qk_rope_head_dim"]', '2 * config["kv_lora_rank"]'
    ),
    # The rotary key beside the latent forgotten.
    SOLUTION.replace(' + config["qk_rope_head_dim"]', ""),
    # The heads rebuilt from the latent are stored.
    SOLUTION.replace('"kv_lora_rank" in config', "False"),
    # The head size derived although it is given.
    SOLUTION.replace(
        'config.get("head_dim", config["hidden_size"] // query_heads)',
        'config["hidden_size"] // query_heads',
    ),
    # Query heads instead of KV heads.
    SOLUTION.replace('config.get("num_key_value_heads", query_heads)', "query_heads"),
    # Memory for layers that read an earlier one.
    SOLUTION.replace('[: layers - config.get("num_kv_shared_layers", 0)]', ""),
    # The first layers are left out instead of the last.
    SOLUTION.replace(
        '[: layers - config.get("num_kv_shared_layers", 0)]',
        '[config.get("num_kv_shared_layers", 0) :]',
    ),
)

FULL, SLIDING = "full_attention", "sliding_attention"
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16}
CASES = (
    (HEADS | {"num_hidden_layers": 3}, 5, 480, "3 layers, 2 x 2 heads of 4"),
    ({"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 16}, 1, 64, "4 KV heads"),
    (HEADS | {"num_hidden_layers": 1, "head_dim": 8}, 1, 64, "the head size is given"),
    (
        {
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "hidden_size": 7168,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        },
        1,
        70_272,
        "61 latents of 512 + 64",
    ),
    (
        {
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "hidden_size": 1152,
            "sliding_window": 512,
            "layer_types": [FULL] * 26,
        },
        600,
        15_974_400,
        "a window that no layer uses",
    ),
    (
        HEADS
        | {"num_hidden_layers": 3, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING]},
        10,
        576,
        "10 tokens in one layer, 4 in each of two",
    ),
    (
        HEADS | {"num_hidden_layers": 3, "sliding_window": 8, "layer_types": [SLIDING] * 3},
        5,
        480,
        "fewer tokens than the window",
    ),
    (
        HEADS
        | {
            "num_hidden_layers": 4,
            "sliding_window": 4,
            "layer_types": [SLIDING, FULL, FULL, FULL],
            "num_kv_shared_layers": 2,
        },
        10,
        448,
        "the last two of four layers keep nothing",
    ),
)


def check(answer):
    for config, num_tokens, expected, why in CASES:
        got = answer(dict(config), num_tokens)
        if got != expected:
            return (
                f"sequence_bytes({config}, {num_tokens}) should be {expected:,} ({why}), but yours "
                f"gave {got!r}."
            )
    return None
