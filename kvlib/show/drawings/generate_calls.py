"""Which call of `generate` reaches the blocks: from the model through the cache to the pool."""

from __future__ import annotations

from typing import NamedTuple

from kvlib.paged_ledger import PagedLedger
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

BLOCKS, SIZE, COLUMNS, PADS = 8, 4, 6, 3
ATTENTION = {"kvlib": "kvlib: attends in the blocks", "sdpa": "sdpa: gets a gathered copy"}


class Call(NamedTuple):
    """One call: who makes it, what it is, what comes back, and why, by the attention."""

    caller: str
    call: str
    back: dict[str, str]
    why: dict[str, str]


def _same(text: str) -> dict[str, str]:
    return dict.fromkeys(ATTENTION, text)


CALLS = (
    Call("generate", "get_seq_length()", _same("0 columns"), _same(
        "Two prompts, of 6 and 3 tokens, are a rectangle of 6 columns. 3 of them are pads.")),
    Call("layer 0", "update(k, v)", {"kvlib": "k, v as they came", "sdpa": "6 columns, a copy"}, {
        "kvlib": "No mask comes with it. So nothing is stored yet: the cache hands itself on.",
        "sdpa": "No mask comes with it. So the pads take blocks, too; the mask will hide them."}),
    Call("layer 0", "attention(q, k, v, mask)", _same("outputs"), {
        "kvlib": "The mask says what is real: 9 tokens are written, and read where they lie.",
        "sdpa": "transformers' own, over the copy. The cache is not asked."}),
    Call("last layer", "the same, and commit", _same("6 columns"), _same(
        "Behind the last layer the lengths advance. An exception before that changes nothing.")),
    Call("layer 0", "update, attention", {"kvlib": "outputs", "sdpa": "7 columns, a copy"}, {
        "kvlib": "One token each. The kernel goes through both tables in one call.",
        "sdpa": "One token each. All that is held is copied together again, in every layer."}),
    Call("last layer", "commit", _same("7 columns"), _same("A step later.")),
    Call("generate", "reorder_cache([0, 0])", _same("nothing"), _same(
        "Say the rows are beams, and the first wins: its blocks are named twice, b's are free.")),
    Call("layer 0", "update, attention", {"kvlib": "outputs", "sdpa": "8 columns, a copy"}, _same(
        "The beams write different tokens into one block: it is copied first, for one of them.")),
    Call("last layer", "commit", _same("8 columns"), _same("The whole block stays shared.")),
    Call("you", "reset()", _same("nothing"), _same("Every block is free again.")),
)  # fmt: skip


class State(NamedTuple):
    """The blocks; by row the tokens they hold or are to hold, and how many of them are pads."""

    ledger: PagedLedger
    tokens: dict[str, int]
    pads: dict[str, int]


def after(step: int, attention: str) -> State:
    """Returns what some calls have come to.

    Example:
        >>> [after(4, way).ledger.used_tokens for way in ("kvlib", "sdpa")]
        [9, 12]
    """
    ledger, stored = PagedLedger(BLOCKS, SIZE), {"a": 0, "b": 0 if attention == "kvlib" else PADS}
    tokens, plan = {"a": 0, "b": 0}, None
    # The first call that stores is `update` where a copy is to be returned.
    begins = {3 if attention == "kvlib" else 2: (COLUMNS, COLUMNS - PADS + stored["b"])}
    begins |= {5: (1, 1), 8: (1, 1)}
    for number in range(1, step + 1):
        if number in begins:
            for row in "ab" if not ledger.seq_ids else "":
                ledger.add(row)
            new = {row: [0] * n for row, n in zip("ab", begins[number], strict=True)}
            plan = ledger.plan(new)
            tokens = dict(zip("ab", plan.context_lens, strict=True))
        if number in (4, 6, 9) and plan is not None:
            ledger.commit(plan)
        if number == 7:
            ledger.reorder({"a": "a", "b": "a"})
            stored["b"], tokens["b"] = 0, tokens["a"]
        if number == 10:
            for row in "ab":
                ledger.free(row)
    return State(ledger, tokens, stored)


def _blocks(canvas: Canvas, y: float, state: State) -> int:
    """Draws the pool and returns how many pads lie in it."""
    pitch, num_pads = ROOM / BLOCKS, 0
    tables = {row: state.ledger.table(row) for row in state.ledger.seq_ids}
    for block in range(BLOCKS):
        x = MARGIN + block * pitch
        owners = [row for row, table in tables.items() if block in table]
        for offset in range(SIZE):
            role = "paper"
            for row in owners[:1]:
                at = tables[row].index(block) * SIZE + offset
                role = "used" if at < max(state.tokens[each] for each in owners) else "reserved"
                if at < state.pads[row]:
                    role, num_pads = "wasted", num_pads + 1
            canvas.rect(x + offset * 11, y, 11, 22, role, "faint" if owners else "rule")
        canvas.text(x + 22, y + 38, "+".join(owners) or "free", "middle", bold=len(owners) > 1,
                    role="ink" if owners else "faint")  # fmt: skip
    return num_pads


@drawing(
    step=Slider(range(1, len(CALLS) + 1), 3, "call"),
    attention=Choice(list(ATTENTION), "kvlib", "attention", ATTENTION),
)
def generate_calls(step: int, attention: str) -> str:
    """Draws one call on its way from the model to the cache, and the blocks behind it."""
    call = CALLS[step - 1]
    state = after(step, attention)
    back, why = call.back[attention], call.why[attention]
    used = len({b for row in state.ledger.seq_ids for b in state.ledger.table(row)})
    heading = f"Call {step}: {call.caller} asks {call.call}"
    canvas = Canvas(
        "generate_calls",
        284,
        heading,
        f"{heading}; back comes: {back}. {why} {used} of {BLOCKS} blocks are held.",
        heading=f"Call {step} of {len(CALLS)}",
        under=ATTENTION[attention],
    )
    for x, name in ((MARGIN, call.caller), (WIDTH - MARGIN - 100, "cache")):
        canvas.rect(x, 64, 100, 40, "paper", "used")
        canvas.text(x + 50, 89, name, "middle", bold=True)
    for y, ends in ((76, (WIDTH - MARGIN - 104, -6)), (96, (MARGIN + 104, 6))):
        tip, turn = ends
        canvas.line([(MARGIN + 104, y), (WIDTH - MARGIN - 104, y)], "ink", 1.5)
        canvas.line([(tip + turn, y - 4), (tip, y), (tip + turn, y + 4)], "ink", 1.5)
    canvas.text(WIDTH / 2, 71, call.call, "middle")
    canvas.text(WIDTH / 2, 114, back, "middle", role="faint")
    num_pads = _blocks(canvas, 158, state)
    canvas.text(MARGIN, 148, f"Pool: {BLOCKS - used} of {BLOCKS} blocks free", bold=True)
    canvas.text(WIDTH - MARGIN, 148, f"{num_pads} pads stored", "end")
    keys = (("used", "token"), ("wasted", "pad"), ("reserved", "room left"))
    for i, (role, words) in enumerate(keys):
        canvas.key(MARGIN + 110 * i, 222, role, words)
    canvas.paragraph(250, why)
    return canvas.svg()
