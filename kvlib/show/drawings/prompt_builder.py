"""A prompt's parts in an order the reader chooses, and how much of each a prefix cache finds."""

from __future__ import annotations

from functools import cache

from kvlib.catalog import gpu, model
from kvlib.prefill_time import Prefill
from kvlib.prompt_bill import Bill, bill
from kvlib.prompts import Ask, Template, asks
from kvlib.show.drawings.controls import Choice, Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas

_LEFT, _RIGHT, _ROW = 116, 380, 26


def order_of(date: str, user: str, documents: str) -> tuple[str, ...]:
    """Returns the order of parts; system prompt and tools stand together, the question last.

    Example:
        >>> order_of("last", "behind tools", "behind history")
        ('system', 'tools', 'user', 'history', 'documents', 'date', 'question')
    """
    places = {"date": date, "user": user}
    order = [part for part in ("date", "user") if places[part] == "first"]
    order += ["system", "tools"]
    order += [part for part in ("date", "user") if places[part] == "behind tools"]
    middle = ["documents", "history"] if documents == "before history" else ["history", "documents"]
    if user == "behind documents":
        middle.insert(middle.index("documents") + 1, "user")
    order += middle
    if date == "last":
        order.append("date")
    return (*order, "question")


@cache
def _turns(num_turns: int) -> tuple[Ask, ...]:
    return tuple(asks(0, num_users=96 // num_turns, num_turns=num_turns))


@cache
def billed(order: tuple[str, ...], stamp: str, in_order: bool, turns: int, block: int) -> Bill:
    """Returns what 96 turns cost with a template, on an A10 with Llama-3-8B."""
    prefill = Prefill(gpu("A10"), model("Llama-3-8B"))
    return bill(Template(order, stamp, in_order), _turns(turns), prefill, block)


def _rows(canvas: Canvas, y: float, found: Bill) -> None:
    most = max(tokens for tokens, _ in found.by_part.values())
    for i, (name, (tokens, cached)) in enumerate(found.by_part.items()):
        top = y + _ROW * i
        width = (_RIGHT - _LEFT) * tokens / most
        share = cached / tokens if tokens else 0
        canvas.text(MARGIN, top + 13, f"{i + 1}. {name}")
        canvas.rect(_LEFT, top, width, 17, "prefill", "faint")
        canvas.rect(_LEFT, top, width * share, 17, "cached", "faint")
        canvas.text(WIDTH - MARGIN, top + 13, f"{100 * share:.0f} %", "end", bold=True)


@drawing(
    date=Choice(["first", "behind tools", "last"], "first", "date"),
    stamp=Choice(["second", "minute", "day"], "second", "the date says the"),
    user=Choice(["first", "behind tools", "behind documents"], "first", "user's profile"),
    documents=Choice(["before history", "behind history"], "before history", "documents"),
    in_order=Toggle(False, "documents stand by", "relevance", "their name"),
    turns=Slider([1, 4, 12], 4, "turns of a conversation"),
    block=Slider([1, 16, 64, 256], 16, "block size, tokens"),
)
def prompt_builder(
    date: str, stamp: str, user: str, documents: str, in_order: bool, turns: int, block: int
) -> str:
    """Draws the parts in order, with what a cache finds of each, and what the prompts cost."""
    order = order_of(date, user, documents)
    found = billed(order, stamp, in_order, turns, block)
    naive = billed(order_of("first", "first", "before history"), "second", False, turns, block)
    count = len(_turns(turns))
    heading = f"{100 * found.prefix_hit_rate:.0f} % of the prompt tokens are found"
    less = 1 - found.computed_tokens / naive.computed_tokens
    change = f"{100 * abs(less):.0f} % {'fewer' if less > 0 else 'more'} than" if less else "as"
    cost = f"{found.computed_tokens:,} of {found.prompt_tokens:,} tokens are computed: {change}"
    cost += " with date and user first."
    time = (
        f"At best {found.seconds:.1f} s on an A10, {naive.seconds:.1f} s with date and user first."
    )
    rows = "; ".join(
        f"{name} {100 * cached / tokens if tokens else 0:.0f} %"
        for name, (tokens, cached) in found.by_part.items()
    )
    canvas = Canvas(
        "prompt_builder",
        172 + _ROW * len(order),
        heading,
        f"{heading}. Found of each part, in order: {rows}. {cost} {time}",
        under=f"{count} prompts, blocks of {block}, documents by "
        f"{'their name' if in_order else 'relevance'}",
    )
    canvas.key(MARGIN, 74, "cached", "found")
    canvas.key(MARGIN + 82, 74, "prefill", "computed")
    canvas.text(WIDTH - MARGIN, 74, "found of the part", "end", role="faint")
    _rows(canvas, 90, found)
    y = 116 + _ROW * len(order)
    canvas.paragraph(canvas.paragraph(y, cost, bold=True) + 2, time)
    return canvas.svg()
