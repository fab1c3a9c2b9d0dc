"""Whether the keys and values of old tokens stay what they were, in an attention toy of two layers.

The toy is a transformer's skeleton: embedding, then twice queries, keys and values, rotary
positions, attention and a residual. It is run on a text before and after something happens to the
text, and what each old token leaves in a cache is compared.
"""

from __future__ import annotations

from functools import cache
from math import cos, exp, fsum, sin, sqrt
from random import Random

from kvlib.show.drawings.controls import Choice, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, Canvas

LAYERS, WIDE = 2, 4
TEXT = ("the", "cat", "sat", "on", "the")
EVENTS = {
    "append": "a token is appended",
    "replace": "the third token is replaced",
    "drop": "the first token is dropped",
}
Row = list[float]
# Below this a change is rounding: the picture shows two decimals.
_SEEN = 0.005
_CELL, _LEFT, _TOP, _STEP = 60, MARGIN + 108, 96, 34


@cache
def _numbers(name: str, rows: int) -> tuple[Row, ...]:
    """Seeded normal numbers; each row of a matrix has a length near 1."""
    draw = Random(f"exactness {name}")
    return tuple([round(draw.gauss(0, 0.8), 2) for _ in range(WIDE)] for _ in range(rows))


def _times(name: str, x: Row) -> Row:
    return [fsum(map(float.__mul__, row, x)) for row in _numbers(name, WIDE)]


def _rotate(x: Row, position: int) -> Row:
    half, turned = WIDE // 2, [0.0] * WIDE
    for pair in range(half):
        angle = position * 0.5**pair
        first, second = x[pair], x[pair + half]
        turned[pair] = first * cos(angle) - second * sin(angle)
        turned[pair + half] = second * cos(angle) + first * sin(angle)
    return turned


def _attend(query: Row, keys: list[Row], values: list[Row]) -> Row:
    powers = [exp(fsum(map(float.__mul__, query, key)) / sqrt(WIDE)) for key in keys]
    total = fsum(powers)
    return [
        fsum(map(float.__mul__, powers, column)) / total for column in zip(*values, strict=True)
    ]


def entries(words: tuple[str, ...], first_position: int, causal: bool) -> list[list[Row]]:
    """Returns what a text leaves in a cache: keys and values of layer 1, then of layer 2.

    The first layer looks at nothing but the token itself, so its values are the same wherever the
    token stands:

    >>> here, there = (entries(("the", "cat"), start, True) for start in (0, 7))
    >>> here[1] == there[1], here[0] == there[0]
    (True, False)
    """
    left: list[list[Row]] = []
    hidden = [_numbers(word, 1)[0] for word in words]
    for layer in range(LAYERS):
        made = {side: [_times(f"{side}{layer}", x) for x in hidden] for side in "qkv"}
        for side in "qk":
            made[side] = [_rotate(x, first_position + i) for i, x in enumerate(made[side])]
        left += [made["k"], made["v"]]
        ends = [i + 1 if causal else len(words) for i in range(len(words))]
        seen = [
            _attend(query, made["k"][:end], made["v"][:end])
            for query, end in zip(made["q"], ends, strict=True)
        ]
        hidden = [
            [a + b for a, b in zip(*pair, strict=True)] for pair in zip(hidden, seen, strict=True)
        ]
    return left


@cache
def changes(event: str, causal: bool, renumbered: bool) -> list[list[float | None]]:
    """Returns the largest change in each entry of each old token; None for a token that is gone.

    Renumbered positions move by one: a dropped first token's gap is closed, or, with nothing
    dropped, the tokens are pushed back by one place, as by padding on their left.

    Rows are keys and values of layer 1, then of layer 2. Appending under a causal mask changes
    nothing:

    >>> {value for row in changes("append", causal=True, renumbered=False) for value in row}
    {0.0}
    """
    before = entries(TEXT, 0, causal)
    dropped = event == "drop"
    after = {
        "append": (*TEXT, "mat"),
        "replace": (*TEXT[:2], "lay", *TEXT[3:]),
        "drop": TEXT[1:],
    }[event]
    start = int(dropped) if not renumbered else int(not dropped)
    now = entries(after, start, causal)
    return [
        [None] * dropped
        + [
            max(abs(a - b) for a, b in zip(old, new, strict=True))
            for old, new in zip(was[dropped:], new_row[: len(TEXT) - dropped], strict=True)
        ]
        for was, new_row in zip(before, now, strict=True)
    ]


def still_valid(rows: list[list[float | None]]) -> int:
    """Returns how many tokens of the text, from the first on, left nothing that changed.

    A dropped token, and every token behind it, is not counted:

    >>> still_valid(changes("replace", causal=True, renumbered=False))
    2
    """
    fine = [all(x is not None and x < _SEEN for x in column) for column in zip(*rows, strict=True)]
    return (*fine, False).index(False)


def _verdict(valid: int, rows: list[list[float | None]]) -> str:
    changed = [any(x is not None and x >= _SEEN for x in row) for row in rows]
    if not any(changed):
        return "Nothing changed: every entry may stay."
    if valid:
        return f"The first {valid} tokens may stay, the others must be computed again."
    if changed == [True, False, True, False]:
        return "No key may stay. The values may: rotary positions turn keys only."
    if not any(changed[:2]) and rows[0][0] is None:
        return "Above layer 1 they still hold what the dropped token said."
    if not any(changed[:2]):
        return "Nothing may stay but layer 1, which looks at each token alone."
    return "No token may stay in the cache."


@drawing(
    event=Choice(list(EVENTS), "append", "what happens", EVENTS),
    causal=Toggle(True, "causal mask", off="off", on="on"),
    renumbered=Toggle(False, "positions", off="as written", on="moved by one"),
)
def exactness(event: str, causal: bool, renumbered: bool) -> str:
    """Draws by how much each old token's keys and values change when something happens."""
    rows = changes(event, causal, renumbered)
    verdict = _verdict(still_valid(rows), rows)
    setting = (
        f"causal mask {'on' if causal else 'off'}, "
        f"positions {'moved by one' if renumbered else 'as written'}"
    )
    counts = [sum(x is not None and x >= _SEEN for x in row) for row in rows]
    canvas = Canvas(
        "exactness",
        312,
        f"Old keys and values when {EVENTS[event]}",
        f"A table of the five old tokens with {setting}. Changed entries: keys of layer 1 "
        f"{counts[0]}, its values {counts[1]}, keys of layer 2 {counts[2]}, its values "
        f"{counts[3]}. {verdict}",
        f"When {EVENTS[event]}",
        setting,
    )
    for index, word in enumerate(TEXT):
        gone = rows[0][index] is None
        canvas.text(_LEFT + index * _CELL + 6, _TOP - 12, word, role="faint" if gone else "ink")
    for index, row in enumerate(rows):
        y = _TOP + index * _STEP
        canvas.text(MARGIN, y + 19, f"layer {index // 2 + 1}, {('keys', 'values')[index % 2]}")
        for column, value in enumerate(row):
            _cell(canvas, _LEFT + column * _CELL, y, value)
    canvas.key(MARGIN, 252, "cached", "unchanged")
    canvas.key(MARGIN + 112, 252, "wasted", "changed, with max |change|")
    canvas.paragraph(280, verdict, bold=True)
    return canvas.svg()


def _cell(canvas: Canvas, x: float, y: float, value: float | None) -> None:
    if value is None:
        canvas.text(x + 6, y + 19, "gone", role="faint")
        return
    changed = value >= _SEEN
    canvas.rect(x, y, _CELL - 6, _STEP - 6, "paper", "rule")
    canvas.rect(x, y, 14, _STEP - 6, "wasted" if changed else "cached")
    words = f"{value:.2f}" if changed else "0"
    canvas.text(x + _CELL - 12, y + 19, words, "end", bold=changed)
