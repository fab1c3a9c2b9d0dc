"""A block pool through nine events, sound or with one fault, and the invariant that notices."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

BLOCKS = 6
FAULTS = {
    "none": "none",
    "double free": "a second free is accepted",
    "share": "a fork is not counted",
    "leak": "a leaver forgets its last block",
}
EVENTS = (
    ("start", "", ""),
    ("take", "a", "a takes two blocks"),
    ("take", "b", "b takes two blocks"),
    ("fork", "c", "c forks from a"),
    ("leave", "a", "a leaves"),
    ("again", "a", "a's blocks are freed once more"),
    ("take", "d", "d takes two blocks"),
    ("leave", "c", "c leaves"),
    ("leave", "b", "b leaves"),
    ("leave", "d", "d leaves"),
)
INVARIANTS = (
    "a count is the number of tables",
    "no block is held and free",
    "no block is lost",
    "no count is below 0",
)
_BOX = ROOM / BLOCKS


@dataclass
class Pool:
    """A pool that believes what it is told, so that a fault can be seen.

    Attributes:
        refs: the count of each block.
        free: the free blocks; the last one is handed out next.
        tables: the blocks of each sequence.
        said: what the last event came to.
    """

    refs: list[int] = field(default_factory=lambda: [0] * BLOCKS)
    free: list[int] = field(default_factory=lambda: list(range(BLOCKS))[::-1])
    tables: dict[str, list[int]] = field(default_factory=dict)
    said: str = ""

    def give(self, blocks: list[int]) -> None:
        """Takes one reference from each block, the last of them first."""
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)

    def happen(self, what: str, name: str, fault: str) -> None:
        """Lets one event happen, with or without the fault."""
        self.said = ""
        if what == "take":
            self.tables[name] = [self.free.pop() for _ in range(2)]
            for block in self.tables[name]:
                self.refs[block] = 1
        elif what == "fork":
            self.tables[name] = list(self.tables["a"])
            for block in self.tables[name]:
                self.refs[block] += fault != "share"
        elif what == "leave":
            blocks = self.tables.pop(name)
            self.give(blocks[:-1] if fault == "leak" else blocks)
        elif what == "again" and fault == "double free":
            self.give([0, 1])
        elif what == "again":
            self.said = "Refused: a has no blocks to free."

    def broken(self) -> list[list[int]]:
        """Returns for each invariant the blocks that break it."""
        named = [sum(block in table for table in self.tables.values()) for block in range(BLOCKS)]
        each = range(BLOCKS)
        return [
            [block for block in each if self.refs[block] != named[block]],
            [block for block in each if named[block] and block in self.free],
            [block for block in each if not named[block] and block not in self.free],
            [block for block in each if self.refs[block] < 0],
        ]


@cache
def after(event: int, fault: str) -> Pool:
    """Returns the pool after so many events.

    >>> after(3, "none").refs, after(3, "share").broken()[0]
    ([2, 2, 1, 1, 0, 0], [0, 1])
    """
    pool = Pool()
    for what, name, _ in EVENTS[1 : event + 1]:
        pool.happen(what, name, fault)
    return pool


def _block(canvas: Canvas, pool: Pool, block: int, wrong: bool) -> None:
    x = MARGIN + block * _BOX
    owners = " ".join(name for name, table in pool.tables.items() if block in table)
    role = "wasted" if wrong else "used" if owners else "paper"
    canvas.rect(x, 62, _BOX - 6, 16, role, "faint")
    canvas.text(x, 96, f"block {block}", size=12, bold=True)
    canvas.text(x, 112, f"count {pool.refs[block]}", size=12)
    canvas.text(x, 128, f"in {owners}" if owners else "in no table", size=11, role="faint")


@drawing(
    event=Slider(range(len(EVENTS)), 3, "events so far"),
    fault=Choice(list(FAULTS), "none", "fault", FAULTS),
)
def block_pool(event: int, fault: str) -> str:
    """Draws counts, tables and free blocks of a pool, and which invariants hold."""
    pool, what = after(event, fault), EVENTS[event][2]
    broken = pool.broken()
    wrong = {block for blocks in broken for block in blocks}
    line = " ".join(map(str, reversed(pool.free))) or "none"
    states = [f"broken by {' '.join(map(str, each))}" if each else "holds" for each in broken]
    rows = list(zip(INVARIANTS, states, strict=True))
    canvas = Canvas(
        "block_pool",
        306,
        f"Event {event}: {what}" if event else "Before the first event",
        f"Six blocks with the counts {pool.refs}; free, the next one first: {line}. "
        f"{'. '.join(f'{rule}: {state}' for rule, state in rows)}.",
        under=f"Fault: {FAULTS[fault]}",
    )
    for block in range(BLOCKS):
        _block(canvas, pool, block, block in wrong)
    canvas.text(MARGIN, 158, "Free, next one first:", role="faint")
    canvas.text(MARGIN + 142, 158, line, bold=True)
    if pool.said:
        canvas.text(WIDTH - MARGIN, 158, pool.said, "end", size=11)
    canvas.text(MARGIN, 188, "Invariants", bold=True)
    for index, (rule, state) in enumerate(rows):
        y = 212 + 24 * index
        canvas.key(MARGIN, y, "wasted" if broken[index] else "paper", rule)
        canvas.text(WIDTH - MARGIN, y, state, "end", bold=bool(broken[index]))
    return canvas.svg()
