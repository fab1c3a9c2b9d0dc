"""Who looks at whom: the attention weights of a short text, token by token, masked or not.

Queries and keys are seeded random vectors, one for each token and place; nothing was trained. They
show what a mask does, not what a model thinks.
"""

from __future__ import annotations

from functools import cache
from math import exp, fsum, sqrt
from operator import mul
from random import Random

from kvlib.show.drawings.controls import Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas

TOKENS = ("the", "cat", "sat", "on", "the", "mat", "and", "slept")
OTHER_LAST = "fled"
HEAD_DIM = 8
_CELL, _LEFT, _TOP = 36, MARGIN + 52, 74
_LOW = _TOP + len(TOKENS) * _CELL


def tokens(swapped: bool) -> tuple[str, ...]:
    """Returns the text, with its own last token or with another one in its place."""
    return (*TOKENS[:-1], OTHER_LAST) if swapped else TOKENS


@cache
def _vector(role: str, position: int, token: str) -> tuple[float, ...]:
    draw = Random(f"heatmap {role} {position} {token}")
    # Rounded, because the last digits of gauss depend on the machine's mathematics library.
    return tuple(round(1.2 * draw.gauss(0, 1), 2) for _ in range(HEAD_DIM))


def queries_and_keys(swapped: bool) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """Returns the query and the key of every token, each `HEAD_DIM` wide."""
    placed = list(enumerate(tokens(swapped)))
    return [_vector("query", *place) for place in placed], [_vector("key", *p) for p in placed]


def sees(query: int, key: int, mask: bool, window: int) -> bool:
    """Says whether the query at one position sees the key at another.

    A window counts the query itself and bounds the look back; a mask hides what comes later.

    Example:
        >>> [sees(3, key, mask=True, window=2) for key in range(5)]
        [False, False, True, True, False]
        >>> [sees(3, key, mask=False, window=2) for key in range(5)]
        [False, False, True, True, True]
    """
    return key > query - window and (key <= query or not mask)


def weights(mask: bool, window: int, swapped: bool = False) -> list[list[float]]:
    """Returns the attention weights, one row a query, zero where nothing is seen.

    Args:
        mask: hide later tokens.
        window: how many tokens back a query looks, itself included.
        swapped: with the other last token.

    Example:
        The first token sees itself only:

        >>> weights(mask=True, window=8)[0]
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    queries, keys = queries_and_keys(swapped)
    rows = []
    for query, q in enumerate(queries):
        seen = [key for key in range(len(keys)) if sees(query, key, mask, window)]
        scores = {key: fsum(map(mul, q, keys[key])) / sqrt(HEAD_DIM) for key in seen}
        # The highest of the seen ones: a hidden key must not even move the rounding.
        highest = max(scores.values())
        powers = {key: exp(score - highest) for key, score in scores.items()}
        total = fsum(powers.values())
        rows.append([powers.get(key, 0.0) / total for key in range(len(keys))])
    return rows


def outputs(mask: bool, window: int, swapped: bool) -> list[float]:
    """Returns what each row gets: its weights times the values, one number a token."""
    values = [_vector("value", *place)[0] for place in enumerate(tokens(swapped))]
    return [fsum(map(mul, row, values)) for row in weights(mask, window, swapped)]


def changed_rows(step: int, mask: bool, window: int) -> list[int]:
    """Returns which of the first `step` rows get something else with the other last token.

    Example:
        >>> changed_rows(8, mask=True, window=8), changed_rows(5, mask=True, window=8)
        ([7], [])
        >>> changed_rows(5, mask=False, window=8)
        [0, 1, 2, 3, 4]
    """
    kept, other = (outputs(mask, window, swapped) for swapped in (False, True))
    return [row for row in range(step) if kept[row] != other[row]]


def _role(row: int, column: int, now: int) -> str:
    if column > row:
        return "wasted"
    if row < now:
        return "faint"
    return "decode" if column == row else "cached"


def _grid(canvas: Canvas, shares: list[list[float]], step: int) -> None:
    right = _LEFT + len(TOKENS) * _CELL
    for row in range(len(TOKENS)):
        y = _TOP + row * _CELL
        for column, share in enumerate(shares[row]):
            x = _LEFT + column * _CELL
            canvas.rect(x, y, _CELL, _CELL, "paper", "rule")
            side = (_CELL - 6) * sqrt(share)
            if row < step and side >= 1:
                middle = (_CELL - side) / 2
                canvas.rect(x + middle, y + middle, side, side, _role(row, column, step - 1))
    y = _TOP + (step - 1) * _CELL
    corners = [(_LEFT, y), (right, y), (right, y + _CELL), (_LEFT, y + _CELL), (_LEFT, y)]
    canvas.line(corners, "ink", 2.5)
    # What the row reads stands below its column, in numbers.
    for column, share in enumerate(shares[step - 1]):
        words = f"{share:.2f}" if share else "-"
        canvas.text(_LEFT + (column + 0.5) * _CELL, _LOW + 16, words, "middle", size=12)
    canvas.text(MARGIN, _LOW + 16, "weight", size=12, role="faint")


def _labels(canvas: Canvas, text: tuple[str, ...], step: int, changed: list[int]) -> None:
    for position, token in enumerate(text):
        exists = "ink" if position < step else "faint"
        y = _TOP + position * _CELL + 22
        canvas.text(
            _LEFT + (position + 0.5) * _CELL, _TOP - 7, token, "middle", size=12, role=exists
        )
        canvas.text(_LEFT - 7, y, token, "end", size=12, bold=position == step - 1, role=exists)
        if position in changed:
            canvas.text(WIDTH - MARGIN, y, "changed", "end", size=12, bold=True)


def _findings(step: int, mask: bool, window: int, swapped: bool) -> list[str]:
    row = weights(mask, window, swapped)[step - 1]
    read = sum(1 for share in row if share)
    later = fsum(row[step:])
    found = [
        f"One query row; it reads {read} {'key and value' if read == 1 else 'keys and values'}."
    ]
    if not mask and later:
        found.append(f"{later:.2f} of its weight is on tokens that do not exist yet.")
    if swapped:
        count = len(changed_rows(step, mask, window))
        found.append(f"Another last token changes {count} of {step} rows.")
    return found


@drawing(
    step=Slider(range(1, len(TOKENS) + 1), 5, "tokens so far"),
    mask=Toggle(True, "causal mask", off="off", on="on"),
    window=Slider(
        [1, 2, 3, 4, 8], 8, "window (tokens)", {1: "1", 2: "2", 3: "3", 4: "4", 8: "all"}
    ),
    swapped=Toggle(False, "last token", off=TOKENS[-1], on=OTHER_LAST),
)
def attention_heatmap(step: int, mask: bool, window: int, swapped: bool) -> str:
    """Draws the weights of all query rows so far, and what the newest row reads."""
    found = _findings(step, mask, window, swapped)
    canvas = Canvas(
        "attention_heatmap",
        _LOW + 94 + 18 * 3,
        f"Attention of {step} tokens, causal mask {'on' if mask else 'off'}",
        f"A grid of {len(TOKENS)} by {len(TOKENS)}: one row a query, one column a key, each square "
        f"as large as its weight. Rows after token {step} are still empty. {' '.join(found)}",
        under="rows: queries; columns: keys; area: weight",
    )
    _labels(canvas, tokens(swapped), step, changed_rows(step, mask, window) if swapped else [])
    _grid(canvas, weights(mask, window, swapped), step)
    canvas.key(MARGIN, _LOW + 44, "cached", "kept keys")
    canvas.key(MARGIN + 106, _LOW + 44, "decode", "its own key")
    canvas.key(MARGIN + 222, _LOW + 44, "wasted", "tokens to come")
    canvas.key(MARGIN, _LOW + 66, "faint", "rows of earlier steps, not needed any more")
    y = _LOW + 94
    for index, words in enumerate(found):
        y = canvas.paragraph(y, words, bold=not index)
    return canvas.svg()
