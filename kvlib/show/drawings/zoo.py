"""Twelve wrong addresses: for each bug, the token a place should hold and the one found there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, Canvas

SIZE, LONGEST, SHARED, WINDOW = 4, 12, 6, 4
TABLE, OTHER = (5, 2, 7), (1, 4, 0)
NONE = "-"


class Place(NamedTuple):
    """One place: its column, what belongs there and what is found."""

    column: str
    meant: str
    found: str


Bug = Callable[[int], list[str]]


def _slot(table: tuple[int, ...], position: int) -> int:
    return table[position // SIZE] * SIZE + position % SIZE


def _owns(name: str, table: tuple[int, ...], num_tokens: int) -> dict[int, str]:
    """A memory in which one sequence lies where it should."""
    return {_slot(table, p): f"{name}{p}" for p in range(num_tokens)}


def _read(memory: dict[int, str], table: tuple[int, ...], num_tokens: int) -> list[str]:
    return [memory.get(_slot(table, p), NONE) for p in range(num_tokens)]


def _stale(n: int) -> list[str]:
    old = (3, *TABLE[1:])
    return _read(_owns("x", old, SIZE) | _owns("a", TABLE, n), old, n)


def _double_free(n: int) -> list[str]:
    """Block 2 is handed out again when a has five tokens; d writes two into it."""
    memory = _owns("a", TABLE, 5) | _owns("d", TABLE[1:], 2)
    return _read(memory | {_slot(TABLE, p): f"a{p}" for p in range(5, n)}, TABLE, n)


def _minus_one(n: int) -> list[str]:
    slots = (max(TABLE) + 1) * SIZE
    return _read(_owns("a", TABLE, n) | {-1 % slots: "pad"}, TABLE, n)


def _batch_row(n: int) -> list[str]:
    return _read(_owns("a", TABLE, n) | _owns("b", OTHER, 9), OTHER, n)


def _boundary(n: int) -> list[str]:
    last, memory = (n - 1) // SIZE, {}
    for p in range(n):
        memory[TABLE[min((p + 1) // SIZE, last)] * SIZE + p % SIZE] = f"a{p}"
    return _read(memory, TABLE, n)


def _no_copy(n: int) -> list[str]:
    """C shares two blocks and writes after a, until both take a block of their own."""
    both = {_slot(TABLE, p): f"c{p}" for p in range(SHARED, min(n, 2 * SIZE))}
    return _read(_owns("a", TABLE, n) | both, TABLE, n)


def _partial(n: int) -> list[str]:
    return [f"a{p}" if SHARED <= p < 2 * SIZE else f"e{p}" for p in range(n)]


def _tail(n: int) -> list[str]:
    return [f"a{p}" if p < n else "x" for p in range(-(-n // SIZE) * SIZE)]


def _from_values(n: int) -> list[str]:
    """The owner before has left three tokens in each block."""
    return [f"a{p}" if p < n else "x" if p % SIZE < 3 else NONE for p in range(len(_tail(n)))]


def _seen(n: int, window: int) -> list[str]:
    return [f"a{p}" if p >= n - window else NONE for p in range(n)]


BUGS: dict[str, tuple[str, Bug, str]] = {
    "stale": (
        "stale mapping", _stale,
        "The first entry of the table is that of an earlier owner of the name."),
    "double free": ("double free", _double_free, "Block 2 is a's and d's at once."),
    "minus one": (
        "padding at slot -1", _minus_one, "Index -1 is the last slot, and block 7 is a's."),
    "batch row": (
        "batch row for sequence", _batch_row, "Row 0 of the batch is a, row 0 of the tables b."),
    "boundary": (
        "boundary off by one", _boundary, "The last token of a block is written to the next one."),
    "no copy": ("written without copy", _no_copy, "c writes where a has written."),
    "partial": (
        "partial block shared", _partial,
        "Six tokens of e and a are equal; the second block is shared as if it were full."),
    "heads": (
        "wrong GQA map", lambda n: [f"kv{h % 3}" for h in range(9)],
        "Every position is right. Query heads take the KV heads in turn, not in groups."),
    "tail": ("unmasked tail", _tail, "The free part of the last block is read, too."),
    "full hit": (
        "full hit, no last token", lambda n: [*(f"a{p}" for p in range(n - 1)), NONE],
        "All tokens were found in the cache, so no query is left and nothing predicts the next."),
    "window": (
        "window off by one", lambda n: _seen(n, WINDOW + 1),
        f"A window of {WINDOW} counts the query itself."),
    "values": (
        "lengths from values", _from_values, "What is not zero counts, whoever wrote it."),
}  # fmt: skip


def places(bug: str, num_tokens: int) -> list[Place]:
    """Returns each place of the victim with what belongs there and what is found."""
    found = BUGS[bug][1](num_tokens)
    meant = [f"{'e' if bug == 'partial' else 'a'}{p}" for p in range(num_tokens)]
    if bug == "window":
        meant = _seen(num_tokens, WINDOW)
    if bug == "heads":
        meant = [f"kv{head // 3}" for head in range(9)]
    meant += [NONE] * (len(found) - len(meant))
    return [Place(str(i), m, f) for i, (m, f) in enumerate(zip(meant, found, strict=True))]


def _row(canvas: Canvas, y: float, words: list[str], wrong: list[int], cell: float) -> None:
    for index, word in enumerate(words):
        x = MARGIN + index * cell
        canvas.rect(x, y, cell - 3, 26, "paper", "wasted" if index in wrong else "rule")
        bold = index in wrong
        canvas.text(x + cell / 2 - 1.5, y + 17, word, "middle", size=11, bold=bold)
        if bold:
            canvas.rect(x, y + 28, cell - 3, 6, "wasted")


@drawing(
    bug=Choice(list(BUGS), "no copy", "bug", {bug: made[0] for bug, made in BUGS.items()}),
    num_tokens=Slider(range(5, LONGEST + 1), 7, "tokens of the sequence"),
)
def zoo(bug: str, num_tokens: int) -> str:
    """Draws what each position should read and what it reads, and names the first wrong one."""
    name, _, why = BUGS[bug]
    rows = places(bug, num_tokens)
    wrong = [i for i, place in enumerate(rows) if place.meant != place.found]
    unit = "query head" if bug == "heads" else "position"
    verdict = "Nothing is wrong at this length."
    if wrong:
        many = f"{len(wrong)} {unit}{'s are' if len(wrong) > 1 else ' is'} wrong"
        verdict = f"{many}; the first is {unit} {wrong[0]}."
    table = list(TABLE[: -(-num_tokens // SIZE)])
    under = f"blocks of {SIZE}, table of the sequence {table}"
    if bug == "heads":
        under = "nine query heads, three KV heads, any number of tokens"
    canvas = Canvas(
        "zoo",
        280,
        f"{name}: {'none' if not wrong else len(wrong)} of {len(rows)} places wrong",
        f"{why} {verdict} Meant: {' '.join(p.meant for p in rows)}. "
        f"Read: {' '.join(p.found for p in rows)}.",
        heading=name[0].upper() + name[1:],
        under=under,
    )
    cell = ROOM / LONGEST
    for place in rows:
        x = MARGIN + int(place.column) * cell + cell / 2
        canvas.text(x, 74, place.column, "middle", size=11, role="faint")
    canvas.text(MARGIN, 94, f"meant, by {unit}", role="faint")
    _row(canvas, 100, [place.meant for place in rows], [], cell)
    nothing = any(NONE in place for place in rows)
    label = "read (- stands for nothing)" if nothing else "read"
    canvas.text(MARGIN, 146, label, role="faint")
    _row(canvas, 152, [place.found for place in rows], wrong, cell)
    if wrong:
        x = MARGIN + wrong[0] * cell + cell / 2 - 1.5
        canvas.text(x, 200, "first", "middle", size=11, bold=True)
    y = canvas.paragraph(226, verdict, bold=True)
    canvas.paragraph(y + 2, why)
    return canvas.svg()
