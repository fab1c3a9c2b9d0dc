"""Bytes of each rank when a cache is cut by heads, copies included."""

TASK = """
A cache of `num_kv_heads` KV heads is cut by heads over `num_ranks` ranks. One token leaves
`head_bytes` bytes in one head, all layers and keys and values together. **Return the list of bytes
that `num_tokens` tokens take on each rank, rank 0 first.**

- with at least as many heads as ranks, each head lies on one rank; where they do not divide, the
  first ranks have one head more;
- with more ranks than heads, every rank still has one head: heads are kept several times.
"""

STUB = """
def bytes_per_rank(num_kv_heads, num_ranks, head_bytes, num_tokens):
    whole = num_kv_heads * head_bytes * num_tokens
    return [whole // num_ranks] * num_ranks
"""

SOLUTION = """
def bytes_per_rank(num_kv_heads, num_ranks, head_bytes, num_tokens):
    one = head_bytes * num_tokens
    heads, more = divmod(num_kv_heads, num_ranks)
    if heads == 0:
        return [one] * num_ranks
    return [(heads + (rank < more)) * one for rank in range(num_ranks)]
"""

WRONG = (
    STUB,
    # Leaves the ranks that are too many empty.
    SOLUTION.replace("if heads == 0:", "if False:"),
    # Gives the rest to the first rank alone.
    SOLUTION.replace("(rank < more)", "more * (rank == 0)"),
    # Gives the rest to the last ranks.
    SOLUTION.replace("rank < more", "rank >= num_ranks - more"),
    # Drops the heads that do not divide.
    SOLUTION.replace("(heads + (rank < more))", "heads"),
    # Rounds every rank up.
    SOLUTION.replace("(rank < more)", "(more > 0)"),
    # Copies the whole cache.
    SOLUTION.replace("[one] * num_ranks", "[one * num_kv_heads] * num_ranks"),
)

CASES = (
    ((8, 2, 100, 10), [4000, 4000], "four heads each"),
    ((3, 2, 100, 10), [2000, 1000], "three heads: two here and one there"),
    ((8, 3, 10, 1), [30, 30, 20], "eight heads: three, three and two"),
    ((8, 8, 64, 5), [320] * 8, "a head each"),
    ((8, 16, 64, 5), [320] * 16, "every head twice"),
    ((1, 4, 7, 3), [21] * 4, "one head, as in MQA: every rank has all of it"),
    ((4, 1, 7, 3), [84], "one rank has everything"),
    ((3, 2, 100, 0), [0, 0], "no token yet"),
)


def check(answer):
    for args, expected, why in CASES:
        got = answer(*args)
        if not isinstance(got, (list, tuple)) or list(got) != expected:
            return f"bytes_per_rank{args} should be {expected} ({why}), but yours gave {got!r}."
    return None
