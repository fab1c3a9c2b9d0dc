"""From what you see to what to try: two questions, then a technique and its page."""

from __future__ import annotations

from kvlib.field_guide import TITLES, TREES, Fork, leaf
from kvlib.show.drawings.controls import Choice, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas


def _fork(canvas: Canvas, y: float, answer: str, fork: Fork, chosen: bool, second: bool) -> float:
    role = "ink" if chosen else "faint"
    canvas.line([(MARGIN + 8, y - 22), (MARGIN + 8, y - 4), (MARGIN + 26, y - 4)], role, 1 + chosen)
    canvas.text(MARGIN + 32, y, answer, role=role)
    canvas.text(MARGIN + 62, y, fork.question, bold=chosen, role=role)
    for i, (words, end) in enumerate((("yes", fork.yes), ("no", fork.no))):
        taken = chosen and second == (i == 0)
        row = y + 24 + 24 * i
        frame = "used" if taken else "rule"
        canvas.rect(MARGIN + 94, row - 15, WIDTH - 2 * MARGIN - 94, 21, "paper", frame)
        if taken:
            canvas.rect(MARGIN + 94, row - 15, 6, 21, "used")
        end_role = "ink" if taken else "faint"
        canvas.text(MARGIN + 62, row, words, role=end_role)
        canvas.text(MARGIN + 108, row, end.technique, bold=taken, role=end_role)
    return y + 86


@drawing(
    symptom=Choice(list(TREES), "few", "what you see", {k: t.symptom for k, t in TREES.items()}),
    first=Toggle(True, "first question"),
    second=Toggle(True, "second question"),
)
def decision_tree(symptom: str, first: bool, second: bool) -> str:
    """Draws two questions about a symptom, and the technique at their end."""
    tree, end = TREES[symptom], leaf(symptom, first, second)
    fork = tree.yes if first else tree.no
    words = ["no", "yes"]
    where = f"Page: chapter {int(end.page[:2])}, \u201c{TITLES[end.page]}\u201d."
    canvas = Canvas(
        "decision_tree",
        384,
        f"What to try: {tree.symptom.lower()}",
        f"{tree.symptom}. {tree.question} {words[first]}. {fork.question} {words[second]}. "
        f"So: {end.technique}. {where} Look at: {end.look_at}.",
        heading=tree.symptom,
        under="Answer from a log, a shape or a trace; not from a feeling",
    )
    canvas.text(MARGIN, 78, tree.question, bold=True)
    y = _fork(canvas, 108, "yes", tree.yes, first, second)
    y = _fork(canvas, y, "no", tree.no, not first, second)
    canvas.text(MARGIN, y + 10, f"Try: {end.technique}", bold=True)
    y = canvas.paragraph(y + 30, where)
    canvas.text(MARGIN, y + 2, f"Look at: {end.look_at}")
    return canvas.svg()
