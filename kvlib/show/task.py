"""Exercises as HTML: the task, the stub, and the mark a page's script looks for."""

from __future__ import annotations

import re
from html import escape

from kvlib.exercises import Exercise
from kvlib.show.drawings.palette import stylesheet


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def markdown(text: str) -> str:
    """Returns the little markdown tasks use as HTML: paragraphs, `-` lists, `code`, **bold**.

    Example:
        >>> markdown("Count **all** of `n`.")
        '<p>Count <strong>all</strong> of <code>n</code>.</p>'
    """
    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith("- "):
            items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
            rows = (f"<li>{_inline(' '.join(item.split()))}</li>" for item in items)
            parts.append(f"<ul>{''.join(rows)}</ul>")
        else:
            parts.append(f"<p>{_inline(' '.join(block.split()))}</p>")
    return "".join(parts)


def html(exercise: Exercise) -> str:
    """Returns an exercise as HTML: complete without a script, editable with one."""
    call = f'exercises.check("{exercise.slug}", {exercise.answer_name})'
    return (
        f'<div class="kv-exercise" data-exercise="{exercise.slug}">'
        f"<style>{stylesheet()}</style>{markdown(exercise.task)}"
        f'<pre class="kv-stub">{escape(exercise.stub.strip())}</pre>'
        f'<p class="kv-hint"><small>In a notebook, complete it in a cell of your own, then run '
        f"<code>{escape(call)}</code>.</small></p></div>"
    )
