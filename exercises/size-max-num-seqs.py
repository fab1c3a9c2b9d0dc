"""How many sequences an engine may run, from its memory budget."""

TASK = """
An engine is given a share of a card, in percent of **all** of it. Out of the share come the
weights, the activations of its largest step and `other_bytes`; the cache takes what is left, in
whole blocks. **Return how many sequences of `context` tokens the cache holds at once.**

- a sequence takes whole blocks of `block_size` tokens, each token `token_bytes` bytes;
- 0 where not even one fits, and where the share is already spent;
- all numbers are whole, and large: stay with whole numbers.
"""

STUB = """
def max_num_seqs(card_bytes, share_percent, weight_bytes, activation_bytes,
                 other_bytes, token_bytes, block_size, context):
    ...
"""

SOLUTION = """
def max_num_seqs(card_bytes, share_percent, weight_bytes, activation_bytes,
                 other_bytes, token_bytes, block_size, context):
    share = card_bytes * share_percent // 100
    left = share - weight_bytes - activation_bytes - other_bytes
    num_blocks = max(0, left) // (token_bytes * block_size)
    return num_blocks // -(-context // block_size)
"""

_HEAD = "def max_num_seqs(card, percent, weights, activations, other, token, size, context):\n"
WRONG = (
    # Takes the share of what the weights leave.
    _HEAD + "    left = (card - weights) * percent // 100 - activations - other\n"
    "    return max(0, left) // (token * size) // -(-context // size)\n",
    # Forgets the activations: it starts, and dies at the first long prompt.
    _HEAD + "    left = card * percent // 100 - weights - other\n"
    "    return max(0, left) // (token * size) // -(-context // size)\n",
    # Divides tokens by tokens, as a log does, and promises part of a block twice.
    _HEAD + "    left = card * percent // 100 - weights - activations - other\n"
    "    return max(0, left) // (token * size) * size // context\n",
    # A share that is spent is no room for a negative number.
    _HEAD + "    left = card * percent // 100 - weights - activations - other\n"
    "    return left // (token * size) // -(-context // size)\n",
    STUB,
)

CASES = (
    ((1000, 90, 400, 100, 50, 1, 10, 30), 11, "350 bytes are 35 blocks, a sequence takes 3"),
    ((1000, 90, 400, 100, 50, 1, 10, 31), 8, "31 tokens take 4 blocks of 10"),
    ((1000, 90, 400, 100, 50, 1, 10, 360), 0, "35 blocks, and one sequence takes 36"),
    ((1000, 50, 400, 100, 50, 1, 10, 10), 0, "the share is spent, and more"),
    ((1000, 100, 400, 100, 50, 3, 10, 10), 15, "450 bytes are 15 blocks of 30"),
    (
        (85_061_827_297, 90, 16_060_000_000, 905_969_664, 429_496_729, 131_072, 16, 8192),
        55,
        "Llama-3-8B on an H100",
    ),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if got != expected:
            return f"max_num_seqs{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
