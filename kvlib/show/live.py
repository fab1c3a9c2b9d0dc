"""The seam to a reader's browser: HTML that marks what can live, and the functions a page calls.

A page holds `html(name)`, a picture with its controls described in data attributes, or
`exercise_html`, a task and the source to start from, or `try_html`, a few lines to change and run.
A script that runs this package in the browser reads them and asks through `answer` for one of
three: `render` when a control moves, `grade` when an exercise is handed in, `run` when code is
tried. All take and return strings only. Without a script the picture stays, its values below it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from html import escape
from typing import Any

from kvlib import exercises
from kvlib.exercises import Exercise
from kvlib.show.drawings import find
from kvlib.show.drawings.palette import stylesheet
from kvlib.show.tryit import Outcome
from kvlib.show.tryit import run as run_source


def sheet(picture: str) -> str:
    """Returns a picture, or an error in its place, with the colours a dark page needs."""
    return f'<style>{stylesheet()}</style><div class="kv-view">{picture}</div>'


def html(name: str, values: dict[str, Any] | None = None, *, picture: str = "") -> str:
    """Returns a drawing as HTML that needs no script, and that a script can bring to life.

    `data-controls` is a JSON object: control name to its kind (`slider`, `choice` or `toggle`),
    label, values, the texts to show for them, and the present value.

    Args:
        name: the drawing.
        values: values of its controls; defaults for the rest.
        picture: what to show in place of the SVG, such as an error.
    """
    drawing = find(name)
    chosen = drawing.complete(values or {})
    controls = {
        key: {
            "kind": control.kind,
            "label": control.label,
            "values": control.values,
            "texts": control.texts,
            "value": chosen[key],
        }
        for key, control in drawing.controls.items()
    }
    settings = " · ".join(
        f"{control.label}: {control.text(chosen[key])}" for key, control in drawing.controls.items()
    )
    return (
        f'<div class="kv-live" data-draw="{name}" '
        f'data-controls="{escape(json.dumps(controls, ensure_ascii=False))}">'
        f"{sheet(picture or drawing(**chosen))}"
        f'<p class="kv-settings"><small>{escape(settings)}</small></p></div>'
    )


def _inline(text: str) -> str:
    codes: list[str] = []

    def set_aside(match: re.Match[str]) -> str:
        codes.append(f"<code>{match[1]}</code>")
        return f"\0{len(codes) - 1}\0"

    # A star inside of code is a star.
    text = re.sub(r"`([^`]+)`", set_aside, escape(text, quote=False))
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    text = re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"<em>\1</em>", text)
    return re.sub(r"\0(\d+)\0", lambda match: codes[int(match[1])], text)


def markdown(text: str) -> str:
    """Returns the little markdown tasks use as HTML: paragraphs, lists, `code`, **bold**, *italic*.

    Example:
        >>> markdown("Count **all** of `n ** 2`, *then* stop.")
        '<p>Count <strong>all</strong> of <code>n ** 2</code>, <em>then</em> stop.</p>'
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


def exercise_html(exercise: Exercise) -> str:
    """Returns an exercise as HTML: complete without a script, editable with one."""
    call = f'exercises.check("{exercise.slug}", {exercise.answer_name})'
    return (
        f'<div class="kv-exercise" data-exercise="{exercise.slug}">'
        f"<style>{stylesheet()}</style>{markdown(exercise.task)}"
        f'<pre class="kv-stub">{escape(exercise.stub.strip())}</pre>'
        f'<p class="kv-hint"><small>In a notebook, complete it in a cell of your own, then run '
        f"<code>{escape(call)}</code>.</small></p></div>"
    )


def try_html(source: str, outcome: Outcome) -> str:
    """Returns code and what it gave as HTML: complete without a script, editable with one."""
    return (
        f'<div class="kv-try"><pre class="kv-code">{escape(source.strip())}</pre>'
        f'<pre class="kv-printed">{escape(outcome.text)}</pre>'
        f'<p class="kv-hint"><small>In a notebook, copy it into a cell of your own to change it.'
        f"</small></p></div>"
    )


def render(name: str, values_json: str = "{}") -> str:
    """Returns the SVG of a drawing at the values of a JSON object; defaults for the rest.

    Raises:
        ValueError: there is no such drawing, or a value is not one its control lists.
        TypeError: a name in the object is not a control of it.
    """
    return find(name)(**json.loads(values_json))


def grade(slug: str, source: str) -> str:
    """Runs a reader's source in a fresh namespace and returns the verdict as a JSON object.

    It has `passed` (bool), `message` (a sentence; the error if the source fails) and `printed`
    (what the source wrote to standard output).
    """
    return json.dumps(asdict(exercises.check_source(slug, source)))


def run(source: str) -> str:
    """Runs a few lines as a cell would and returns what they show as a JSON object.

    It has `printed`, `value` (the last expression's `repr`) and `error` (a sentence), each empty
    where there is none.
    """
    return json.dumps(asdict(run_source(source)))


_CALLS = {"render": render, "grade": grade, "run": run}


def answer(name: str, *args: str) -> str:
    """Calls `render`, `grade` or `run` for a page and returns a JSON object.

    It has the `value` that came, or the `error` in its place: its type and message.

    Example:
        >>> json.loads(answer("render", "decode_steps", '{"stop": 1}'))
        {'error': "TypeError: decode_steps has ['step', 'cached'], not ['stop']"}
    """
    try:
        return json.dumps({"value": _CALLS[name](*args)})
    # Whatever a reader's code raises, KeyboardInterrupt too, must not end the page's Python.
    except BaseException as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
