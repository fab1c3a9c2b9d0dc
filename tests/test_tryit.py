"""Code to try runs as a cell does, in the kernel and through the page's strings alike."""

import json
from html import unescape

import pytest

from kvlib import show
from kvlib.show import live
from kvlib.show.tryit import run


@pytest.mark.parametrize(
    "source, text",
    [
        ("", ""),
        ("x = 1", ""),
        ("None", ""),
        ("print('a')\n'b'", "a\n'b'"),
        ("print('a')\n1 / 0\nprint('b')", "a\nZeroDivisionError in line 2: division by zero"),
        ("def f():\n    return 2\nf() + f()", "4"),
        ("x = [1\n", "SyntaxError in line 1: '[' was never closed"),
        ("import sys\nsys.exit(3)", "SystemExit in line 2: 3"),
    ],
)
def test_it_shows_what_a_cell_would(source, text):
    assert run(source).text == text


def test_a_function_sees_its_own_module():
    assert run("n = 3\ndef f():\n    return n\nf()").value == "3"


def test_two_runs_share_nothing():
    run("left_over = 1")
    assert run("left_over").error.startswith("NameError in line 1")


def test_the_box_holds_the_code_and_what_it_gave():
    box = show.try_it("a = '<b>'\nprint(a)\nlen(a)\n")
    html = box._repr_html_()
    assert '<pre class="kv-code">a = &#x27;&lt;b&gt;&#x27;\nprint(a)\nlen(a)</pre>' in html
    assert '<pre class="kv-printed">&lt;b&gt;\n3</pre>' in html
    assert "<b>" not in html and "<b>" in unescape(html)
    assert repr(box) == "a = '<b>'\nprint(a)\nlen(a)\n<b>\n3"


def test_the_page_asks_through_one_function():
    assert json.loads(json.loads(live.answer("run", "print(1)\n2"))["value"]) == {
        "printed": "1\n",
        "value": "2",
        "error": "",
    }
    drawn = json.loads(live.answer("render", "decode_steps", '{"step": 4}'))
    assert drawn == {"value": live.render("decode_steps", '{"step": 4}')}
    assert json.loads(json.loads(live.answer("grade", "kv-bytes", ""))["value"])["passed"] is False


@pytest.mark.parametrize("source", ["raise KeyboardInterrupt", "raise GeneratorExit('no')"])
def test_nothing_a_reader_raises_ends_the_pages_python(source):
    error = json.loads(live.answer("run", source))["error"]
    assert error.split(":")[0] in ("KeyboardInterrupt", "GeneratorExit")
