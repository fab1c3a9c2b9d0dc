"""A widget is a picture everywhere, alive with a kernel, and never hides an error."""

from __future__ import annotations

import base64
import json
import re
import sys
from html import unescape
from typing import Any

import pytest

from kvlib import exercises, show
from kvlib.show import live
from kvlib.show.drawings import Slider, find, registry
from kvlib.show.real_cache import CacheWidget
from kvlib.show.widgets import DrawingWidget

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> str:
    """A drawing that fails at one of its values."""

    def draw(size: int) -> str:
        if size == 2:
            raise ZeroDivisionError("a size of <2> is none")
        return f"<svg>{size}</svg>"

    drawn = registry.Drawing("fragile", draw, {"size": Slider([1, 2, 3], 1, "size")})
    monkeypatch.setitem(registry._DRAWINGS, "fragile", drawn)
    return "fragile"


def test_the_output_carries_all_three_forms() -> None:
    pytest.importorskip("ipywidgets")
    widget = show.widget("decode_steps", step=2)
    bundle = widget._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain", VIEW}
    assert widget.svg in bundle["text/html"]
    assert bundle["text/plain"] == "decode_steps(step=2, cached=True)"


def test_without_ipywidgets_the_picture_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    widget = show.widget("decode_steps")
    assert set(widget._repr_mimebundle_()) == {"text/html", "text/plain"}
    assert widget.set(step=8).svg in widget.html


def test_moving_a_live_control_redraws_and_setting_moves_the_control() -> None:
    widget = show.widget("decode_steps")
    box = widget._live()
    step, cached, view = box.children
    step.value = 6
    assert widget.value == {"step": 6, "cached": True}
    assert find("decode_steps")(step=6) in view.value
    widget.value = {"step": 2, "cached": False}
    assert (step.value, cached.value) == (2, False)
    assert widget.svg == find("decode_steps")(step=2, cached=False)
    assert widget.svg in view.value


def test_showing_twice_shows_the_same_controls() -> None:
    pytest.importorskip("ipywidgets")
    widget = show.widget("decode_steps")
    assert widget._repr_mimebundle_()[VIEW] == widget._repr_mimebundle_()[VIEW]


@pytest.mark.parametrize("bad", [{"step": 99}, {"stop": 1}, {"cached": False, "step": 99}])
def test_a_refused_move_changes_nothing(bad: dict) -> None:
    widget = show.widget("decode_steps")
    before = widget.value
    with pytest.raises((ValueError, TypeError)):
        widget.set(**bad)
    assert widget.value == before


def test_a_failing_drawing_shows_its_error_and_recovers(fragile: str) -> None:
    widget = show.widget(fragile)
    size, view = widget._live().children
    size.value = 2
    assert "ZeroDivisionError: a size of &lt;2&gt; is none" in view.value
    assert "ZeroDivisionError" in widget._repr_mimebundle_()["text/html"]
    with pytest.raises(ZeroDivisionError):
        _ = widget.svg
    size.value = 3
    assert "<svg>3</svg>" in view.value
    assert "ZeroDivisionError" not in view.value


def moved_by(way: str, widget: DrawingWidget, ipywidgets: Any, size: int) -> None:
    """Moves the control as a reader does, or as a cell's own button, slider or output might."""
    if way == "observe":
        widget._box.children[0].value = size
    elif way == "button":
        button = ipywidgets.Button()
        button.on_click(lambda _: widget.set(size=size))
        button.click()
    elif way == "interactive":
        made = ipywidgets.interactive(lambda size: widget.set(size=size), size=[1, 2, 3])
        made.children[0].value = size
    else:
        with ipywidgets.Output():
            widget.set(size=size)


@pytest.mark.parametrize("way", ["observe", "button", "interactive", "output"])
def test_whatever_moves_a_control_the_reader_sees_the_error(fragile: str, way: str) -> None:
    """Of these only `observe` lets an error out of a callback; none may leave the old picture."""
    ipywidgets = pytest.importorskip("ipywidgets")
    widget = show.widget(fragile)
    widget._repr_mimebundle_()
    view = widget._box.children[-1]
    moved_by(way, widget, ipywidgets, 2)
    assert "ZeroDivisionError: a size of &lt;2&gt; is none" in view.value
    assert "<svg>" not in view.value
    moved_by(way, widget, ipywidgets, 3)
    assert "<svg>3</svg>" in view.value


@pytest.mark.parametrize("error", [ValueError("no such size"), RuntimeError("no memory")])
def test_a_real_cache_that_cannot_be_made_says_so_under_the_picture(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(self: CacheWidget) -> None:
        raise error

    monkeypatch.setattr(CacheWidget, "real", property(fails))
    widget = show.widget("contiguous_cache")
    control, *_, view = widget._live().children
    control.value = next(value for _, value in control.options if value != control.value)
    assert "<svg" in view.value
    assert f"{error}</small>" in view.value


def test_the_page_gets_every_control_as_data() -> None:
    html = live.html("decode_steps", {"step": 4})
    data = json.loads(unescape(re.search(r'data-controls="([^"]*)"', html).group(1)))
    assert data["step"] == {
        "kind": "slider",
        "label": "steps done",
        "values": [1, 2, 3, 4, 5, 6, 7, 8],
        "texts": ["1", "2", "3", "4", "5", "6", "7", "8"],
        "value": 4,
    }
    assert data["cached"]["kind"] == "toggle"
    assert 'class="kv-live" data-draw="decode_steps"' in html
    assert "steps done: 4 · KV cache: with" in html


def test_the_page_draws_through_strings_what_the_kernel_draws() -> None:
    assert live.render("decode_steps", '{"step": 4}') == find("decode_steps")(step=4)
    assert live.render("decode_steps") == find("decode_steps")()
    with pytest.raises(ValueError, match="no drawing"):
        live.render("nothing")


def test_an_exercise_shows_task_and_stub() -> None:
    view = show.exercise("kv-bytes")
    html = view._repr_html_()
    assert 'data-exercise="kv-bytes"' in html
    assert "<strong>Repair it.</strong>" in html
    assert "<li>a key and a value are each <code>head_dim</code> elements wide.</li>" in html
    assert exercises.load("kv-bytes").stub.strip() in unescape(html)
    assert "Repair it" in repr(view)


def test_the_page_grades_through_strings() -> None:
    exercise = exercises.load("kv-bytes")
    verdict = json.loads(live.grade("kv-bytes", f"print('hello')\n{exercise.solution}"))
    assert verdict["passed"]
    assert verdict["printed"] == "hello\n"
    verdict = json.loads(live.grade("kv-bytes", "def kv_bytes(:"))
    assert not verdict["passed"]
    assert verdict["message"].startswith("SyntaxError in line 1")


def test_a_plot_carries_its_description_and_its_numbers() -> None:
    series = {"with a cache": ([1, 2], [1, 2]), "without": ([1, 2], [1, 3])}
    plot = show.line_plot(series, x="tokens", y="forwards", alt="At 2 tokens 3 against 2.")
    data, metadata = plot._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert data["text/plain"] == "Plot: At 2 tokens 3 against 2."
    assert metadata["image/png"]["alt"] == plot.alt
    assert plot.series["without"] == ([1, 2], [1, 3])


def test_the_same_plot_is_the_same_picture() -> None:
    def draw() -> str:
        return show.bar_plot(
            {"weights": [1, 2], "used": [3, 4]},
            ["a", "b"],
            y="GB",
            alt="Two stacks.",
            stacked=True,
            limit=("card", 5),
        )._repr_mimebundle_()[0]["image/png"]

    assert draw() == draw()


def test_a_plot_without_description_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an alt text"):
        show.line_plot({"a": ([1], [1])}, x="x", y="y", alt=" ")


def test_a_series_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError):
        show.bar_plot({"a": [1, 2, 3]}, ["one", "two"], y="GB", alt="Bars.")


def test_show_says_what_it_has() -> None:
    with pytest.raises(AttributeError, match=r"kvlib\.show has no 'pie_plot'; it has bar_plot"):
        _ = show.pie_plot
