"""A prompt, two forks and a later one: which blocks are shared, and who copies what."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvlib.paged_ledger import PagedLedger
from kvlib.plan import BlockCopy
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

PROMPT, BLOCKS = 6, 32
LANES = 3
# What happens at each step: a prompt, forks (parent, child), one token each, or a leaver.
STEPS: tuple[tuple[str, str, str], ...] = (
    ("prompt", "a", f"a reads a prompt of {PROMPT} tokens"),
    ("fork", "ab ac", "b and c fork from a"),
    ("write", "abc", "each writes a token"),
    ("write", "abc", "each writes another"),
    ("leave", "c", "c leaves"),
    ("fork", "bd", "d forks from b"),
    ("write", "abd", "each writes a token"),
    ("write", "abd", "each writes another"),
)
_CELL, _TOP, _LANE = 33, 84, 62


@dataclass
class Sharing:
    """What some steps have come to.

    Attributes:
        ledger: who holds which blocks.
        alive: the sequences, in the order of their lanes.
        copies: the copies of the last step.
        copied: tokens copied so far.
        cloned: tokens that copying everything at each fork would have copied.
    """

    ledger: PagedLedger
    alive: list[str] = field(default_factory=list)
    copies: tuple[BlockCopy, ...] = ()
    copied: int = 0
    cloned: int = 0

    def happen(self, what: str, names: str) -> None:
        """Lets one step happen."""
        self.copies = ()
        if what == "prompt":
            self.ledger.add(names)
            self.alive.append(names)
        if what == "fork":
            for parent, child in names.split():
                self.ledger.fork(parent, child)
                self.cloned += self.ledger.length(parent)
                self.alive.append(child)
        elif what == "leave":
            self.ledger.free(names)
            self.alive.remove(names)
        else:
            new = [0] * PROMPT if what == "prompt" else [0]
            plan = self.ledger.plan(dict.fromkeys(names, new))
            self.copies = plan.copies
            self.copied += sum(copy.num_tokens for copy in plan.copies)
            self.ledger.commit(plan)


def after(step: int, block_size: int) -> Sharing:
    """Returns the state after the first `step` steps."""
    state = Sharing(PagedLedger(BLOCKS, block_size))
    for what, names, _ in STEPS[:step]:
        state.happen(what, names)
    return state


def _tree(canvas: Canvas, state: Sharing, size: int, wrote: bool) -> None:
    """Draws each block once, in the lane of the first sequence that has it."""
    tables = {name: state.ledger.table(name) for name in state.alive}
    place: dict[int, tuple[float, float]] = {}
    for lane, (name, table) in enumerate(tables.items()):
        y, length = _TOP + lane * _LANE, state.ledger.length(name)
        for index, block in enumerate(table):
            x = MARGIN + index * size * _CELL
            if block in place:
                continue
            if index:
                left, above = place[table[index - 1]]
                canvas.line([(left + size * _CELL - 6, above + 11), (x, y + 11)], "faint", 1.5)
            place[block] = (x, y)
            _block(canvas, x, y, state, block, index * size, length, size, wrote)
    for block, (x, y) in place.items():
        ends = [name for name, table in tables.items() if table[-1] == block]
        if ends:
            canvas.text(x + size * _CELL - 2, y + 15, ", ".join(ends), bold=True)


def _block(
    canvas: Canvas, x: float, y: float, state: Sharing, block: int, first: int, end: int,
    size: int, wrote: bool,
) -> None:  # fmt: skip
    refs = state.ledger.pool.ref_count(block)
    fresh = {copy.dst: copy.num_tokens for copy in state.copies}.get(block, 0)
    for offset in range(size):
        position = first + offset
        role = "cached" if refs > 1 else "used"
        role = "wasted" if offset < fresh else role
        role = "decode" if wrote and position == end - 1 else role
        role = "reserved" if position >= end else role
        width = _CELL - (6 if offset == size - 1 else 0)
        canvas.rect(x + offset * _CELL, y, width, 22, role, "faint")
    # A cell has room for five thin letters.
    words = {1: f"{block}\u00d7{refs}", 2: f"{block} \u00d7{refs}"}.get(
        size, f"block {block} \u00d7{refs}"
    )
    canvas.text(x + 5, y + 38, words, size=11 if size > 1 else 10, bold=refs > 1 and size > 1)


@drawing(
    step=Slider(range(1, len(STEPS) + 1), 3, "steps done"),
    block_size=Slider([1, 2, 4], 4, "block size (tokens)"),
)
def fork_tree(step: int, block_size: int) -> str:
    """Draws the blocks of forked sequences as a tree, with reference counts and copies."""
    state = after(step, block_size)
    what, _, words = STEPS[step - 1]
    made = "; ".join(f"block {c.src} to {c.dst}, {c.num_tokens} tokens" for c in state.copies)
    held = state.ledger.pool.num_held
    alone = sum(len(state.ledger.table(name)) for name in state.alive)
    lines = (
        f"Copied in this step: {made or 'nothing'}.",
        f"Blocks held: {held}; without sharing they would be {alone}.",
        f"Tokens copied so far: {state.copied}; by cloning at each fork: {state.cloned}.",
    )
    canvas = Canvas(
        "fork_tree",
        414,
        f"Step {step}: {words}",
        f"A tree of blocks of {block_size} tokens. {' '.join(lines)} A fork copies nothing; the "
        "first to write into a shared, partly filled block copies that block.",
        under="Each block once: its number \u00d7 how many sequences hold it",
    )
    _tree(canvas, state, block_size, what == "write")
    canvas.key(MARGIN, 284, "cached", "shared")
    canvas.key(MARGIN + 86, 284, "used", "own")
    canvas.key(MARGIN + 150, 284, "wasted", "just copied")
    canvas.key(MARGIN + 262, 284, "decode", "newest")
    canvas.key(MARGIN, 306, "reserved", "no token yet")
    y = 336.0
    for line in lines:
        y = canvas.paragraph(y, line, bold=line is lines[0])
    assert len(state.alive) <= LANES and MARGIN + 11 * _CELL < WIDTH - MARGIN <= MARGIN + ROOM
    return canvas.svg()
