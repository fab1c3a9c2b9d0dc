"""Append the new key and value, not the query; then take a chunk of several tokens."""

from math import exp, fsum, sqrt

TASK = """
One head, plain lists: a row is a list of `head_dim` numbers. The function should append new tokens
to the cached ones and return each new token's attention output. It has a bug: it appends the
**query** as if it were key and value. **Repair it**, then let it take a chunk of several tokens.

- `queries`, `new_keys`, `new_values` hold one row for each new token, in order;
- each new token sees the whole cache, itself, and the new tokens before it, and nothing later;
- return the list of output rows, and append to `cached_keys` and `cached_values` in place.
"""

STUB = """
from math import exp, sqrt

def append_attention(queries, new_keys, new_values, cached_keys,
                     cached_values):
    outputs = []
    for query in queries:
        cached_keys.append(query)
        cached_values.append(query)
        scores = [
            sum(q * k for q, k in zip(query, key)) / sqrt(len(query))
            for key in cached_keys
        ]
        powers = [exp(score - max(scores)) for score in scores]
        weights = [power / sum(powers) for power in powers]
        columns = zip(*cached_values)
        outputs.append(
            [sum(w * v for w, v in zip(weights, column)) for column in columns]
        )
    return outputs
"""

SOLUTION = """
from math import exp, sqrt

def append_attention(queries, new_keys, new_values, cached_keys,
                     cached_values):
    outputs = []
    for query, key, value in zip(queries, new_keys, new_values):
        cached_keys.append(key)
        cached_values.append(value)
        scores = [
            sum(q * k for q, k in zip(query, key)) / sqrt(len(query))
            for key in cached_keys
        ]
        powers = [exp(score - max(scores)) for score in scores]
        weights = [power / sum(powers) for power in powers]
        columns = zip(*cached_values)
        outputs.append(
            [sum(w * v for w, v in zip(weights, column)) for column in columns]
        )
    return outputs
"""

_EXTEND = "    cached_keys.extend(new_keys)\n    cached_values.extend(new_values)\n"

WRONG = (
    STUB,
    # Appends the right key, and the query as value.
    SOLUTION.replace("cached_values.append(value)", "cached_values.append(query)"),
    # Appends the whole chunk first: a token sees those after it.
    STUB.replace("        cached_keys.append(query)\n", "")
    .replace("        cached_values.append(query)\n", "")
    .replace("    outputs = []\n", "    outputs = []\n" + _EXTEND),
    # Leaves the caller's keys, then the caller's values, as they were.
    SOLUTION.replace(
        "    outputs = []\n", "    outputs = []\n    cached_keys = list(cached_keys)\n"
    ),
    SOLUTION.replace(
        "    outputs = []\n", "    outputs = []\n    cached_values = list(cached_values)\n"
    ),
    # Forgets the scale.
    SOLUTION.replace(" / sqrt(len(query))", ""),
)

# A key that points away from its query, so that a query taken for a key shows at once.
ONE = ([[2.0, 0.0]], [[-2.0, 1.0]], [[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]])
CHUNK = (
    [[1.0, 0.5], [-1.0, 2.0], [0.5, 0.5]],
    [[0.0, 1.0], [2.0, 1.0], [-1.0, 1.5]],
    [[1.0, 2.0], [3.0, -4.0], [-5.0, 6.0]],
    [[1.0, 1.0], [0.0, -1.0]],
    [[7.0, 8.0], [9.0, -1.0]],
)
EMPTY = ([[1.0, 1.0]], [[0.0, 2.0]], [[3.0, 4.0]], [], [])


def _expected(queries, new_keys, new_values, cached_keys, cached_values):
    keys, values = cached_keys + new_keys, cached_values + new_values
    outputs = []
    for index, query in enumerate(queries):
        seen = len(cached_keys) + index + 1
        scores = [
            fsum(q * k for q, k in zip(query, key, strict=True)) / sqrt(len(query))
            for key in keys[:seen]
        ]
        powers = [exp(score - max(scores)) for score in scores]
        columns = zip(*values[:seen], strict=True)
        total = fsum(powers)
        outputs.append(
            [fsum(p * v for p, v in zip(powers, column, strict=True)) / total for column in columns]
        )
    return outputs


def _same(got, expected):
    return (
        isinstance(got, (list, tuple))
        and len(got) == len(expected)
        and all(isinstance(row, (list, tuple)) and len(row) == 2 for row in got)
        and all(
            abs(a - b) < 1e-9
            for mine, yours in zip(got, expected, strict=True)
            for a, b in zip(mine, yours, strict=True)
        )
    )


def _short(rows):
    return [[round(value, 3) for value in row] for row in rows]


def check(answer):
    names = ("queries", "new_keys", "new_values", "cached_keys", "cached_values")
    for case in (ONE, CHUNK, EMPTY):
        given = ", ".join(f"{name}={rows}" for name, rows in zip(names, case, strict=True))
        expected = _expected(*case)
        copies = [[list(row) for row in rows] for rows in case]
        got = answer(*copies)
        if not _same(got, expected):
            return f"for {given} it should return {_short(expected)}, but yours gave {got!r}."
        keys, values = case[3] + case[1], case[4] + case[2]
        if copies[3] != keys or copies[4] != values:
            return (
                f"for {given} the outputs are right, but afterwards cached_keys should be {keys} "
                f"and cached_values {values}; yours left {copies[3]} and {copies[4]}."
            )
    return None
