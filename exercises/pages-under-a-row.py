"""The physical pages under one request's contiguous rows, and the bytes in them that are empty."""

TASK = """
A request of `num_tokens` tokens has one contiguous run of addresses for each layer's keys and one
for each layer's values. A token takes `row_bytes` in each run, one behind the other; pages of
`page_bytes` are mapped as a run fills. **Return `(pages, empty_bytes)`**: how many pages the
request holds in all, and how many of their bytes hold nothing.

- a token may begin in one page and end in the next: addresses are contiguous;
- a request without tokens holds no page.
"""

STUB = """
def pages_under(num_tokens, num_layers, row_bytes, page_bytes):
    tokens_per_page = page_bytes // row_bytes
    pages = 2 * num_layers * -(-num_tokens // tokens_per_page)
    return pages, pages * page_bytes - 2 * num_layers * num_tokens * row_bytes
"""

SOLUTION = """
def pages_under(num_tokens, num_layers, row_bytes, page_bytes):
    runs = 2 * num_layers
    run_bytes = num_tokens * row_bytes
    pages = runs * -(-run_bytes // page_bytes)
    return pages, pages * page_bytes - runs * run_bytes
"""

WRONG = (
    STUB,
    # Keys only.
    SOLUTION.replace("2 * num_layers", "num_layers"),
    # One layer only.
    SOLUTION.replace("2 * num_layers", "2"),
    # All layers end to end in one run.
    "def pages_under(num_tokens, num_layers, row_bytes, page_bytes):\n"
    "    used = 2 * num_layers * num_tokens * row_bytes\n"
    "    pages = -(-used // page_bytes)\n"
    "    return pages, pages * page_bytes - used\n",
    # A page more where the last one is just full.
    SOLUTION.replace("-(-run_bytes // page_bytes)", "(run_bytes // page_bytes + 1)"),
    # Empty tokens for empty bytes.
    SOLUTION.replace("- runs * run_bytes", "- runs * num_tokens"),
)

CASES = (
    ((9, 2, 8, 64), (8, 224), "two pages in each of four runs, 72 of 128 bytes filled"),
    ((8, 2, 8, 64), (4, 0), "a page that is just full"),
    ((0, 32, 2048, 2**21), (0, 0), "no tokens, no page"),
    ((1, 32, 2048, 2**21), (64, 64 * (2**21 - 2048)), "Llama-3-8B, one token: 128 MiB"),
    ((1025, 32, 2048, 2**21), (128, 64 * 1023 * 2048), "one token in each second page"),
    ((1024, 32, 6144, 2**21), (192, 0), "a row that does not divide the page: 3 pages, full"),
    ((2, 1, 48, 64), (4, 64), "the second token lies across two pages"),
)


def check(answer):
    for arguments, expected, why in CASES:
        got = answer(*arguments)
        if not isinstance(got, (tuple, list)) or tuple(got) != expected:
            return f"pages_under{arguments} should be {expected} ({why}), but yours gave {got!r}."
    return None
