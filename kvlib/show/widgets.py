"""Drawings and exercises as notebook outputs: alive with a kernel, a picture without one."""

from __future__ import annotations

from html import escape
from typing import Any

from kvlib import exercises
from kvlib.show import live
from kvlib.show.drawings import Control, find
from kvlib.show.tryit import run

_VIEW = "application/vnd.jupyter.widget-view+json"


class DrawingWidget:
    """A drawing whose controls a reader moves; `set` moves them from code.

    Its output carries three forms: the live controls, HTML that a page without a kernel can show or
    bring to life, and one line of text.

    Example:
        >>> picture = DrawingWidget("decode_steps")
        >>> picture.set(step=5).value["step"]
        5
    """

    def __init__(self, name: str, **values: Any) -> None:
        self._drawing = find(name)
        self._value = self._drawing.complete(values)
        self._box: Any = None
        self._inputs: dict[str, Any] = {}

    @property
    def value(self) -> dict[str, Any]:
        """The present values by control name; assign a dict to change some of them."""
        return dict(self._value)

    @value.setter
    def value(self, values: dict[str, Any]) -> None:
        self.set(**values)

    @property
    def svg(self) -> str:
        """The picture at the present values; raises whatever the drawing raises."""
        return self._drawing(**self._value)

    @property
    def html(self) -> str:
        """The picture with its controls described, or the Python error in its place."""
        return live.html(self._drawing.name, self._value, picture=self._picture())

    def set(self, **values: Any) -> DrawingWidget:
        """Moves controls, as a reader would; returns the widget itself.

        Raises:
            TypeError: a name is not a control.
            ValueError: a value is not one the control lists. Either way nothing has moved.
        """
        self._value = self._drawing.complete(self._value | values)
        for name, control in self._inputs.items():
            control.value = self._value[name]
        self._redraw()
        return self

    def _picture(self) -> str:
        # A reader sees the error and moves on; code that asks for `svg` gets it raised.
        try:
            return self.svg
        except Exception as error:
            return f'<pre class="kv-error">{escape(f"{type(error).__name__}: {error}")}</pre>'

    def _sheet(self) -> str:
        return f'<div class="kv-live">{live.sheet(self._picture())}</div>'

    def _redraw(self) -> None:
        if self._box is not None:
            self._box.children[-1].value = self._sheet()

    def _moved(self, name: str, value: Any) -> None:
        if self._value[name] != value:
            self.set(**{name: value})

    def _live(self) -> Any:
        """Builds the ipywidgets once; every output of this object shows the same controls."""
        import ipywidgets

        for name, control in self._drawing.controls.items():
            made = self._inputs[name] = _input(ipywidgets, control, self._value[name])
            made.observe(lambda change, name=name: self._moved(name, change["new"]), "value")
        self._box = ipywidgets.VBox([*self._inputs.values(), ipywidgets.HTML(self._sheet())])
        return self._box

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/html": self.html, "text/plain": repr(self)}
        try:
            box = self._box or self._live()
        except ImportError:
            return bundle
        return bundle | {_VIEW: box._repr_mimebundle_()[_VIEW]}

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._value.items())
        return f"{self._drawing.name}({values})"


def _input(ipywidgets: Any, control: Control, value: Any) -> Any:
    kind = {"slider": "SelectionSlider", "choice": "Dropdown", "toggle": "ToggleButtons"}
    return getattr(ipywidgets, kind[control.kind])(
        options=list(zip(control.texts, control.values, strict=True)),
        value=value,
        description=control.label,
        style={"description_width": "initial"},
        layout={"width": "auto", "max_width": "560px"},
    )


class ExerciseView:
    """An exercise on the page: what to do, and the source to start from."""

    def __init__(self, slug: str) -> None:
        self._exercise = exercises.load(slug)

    def _repr_html_(self) -> str:
        return live.exercise_html(self._exercise)

    def __repr__(self) -> str:
        return f"{self._exercise.task.strip()}\n\n{self._exercise.stub.strip()}"


class TryIt:
    """A few lines of code and what they give; in the built page a reader changes and runs them.

    Example:
        >>> TryIt("2 * 2 * 1 * 4 * 2")
        2 * 2 * 1 * 4 * 2
        32
    """

    def __init__(self, source: str) -> None:
        self._source = source.strip()
        self._outcome = run(self._source)

    def _repr_html_(self) -> str:
        return live.try_html(self._source, self._outcome)

    def __repr__(self) -> str:
        return f"{self._source}\n{self._outcome.text}"
