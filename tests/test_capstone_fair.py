"""Which files are refused before they run, and by which word."""

import pytest

from kvlib.capstone import Refused
from kvlib.capstone_fair import require_fair


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os, time", "import 'time', yours imports 'time'"),
        ("import kvlib.capstone_x as y", "import 'capstone_x', yours imports 'kvlib.capstone_x'"),
        ("from kvlib.tensors import load_model", "import 'load_model', yours imports 'load_model'"),
        ("from kvlib.tensors.capstone import judge", "import 'capstone'"),
        ("from gc import collect", "import 'gc', yours imports 'gc'"),
        ("x = eval('1')", "call eval, yours does"),
        ("def build(model, n):\n    return model.Llama", "look at 'Llama', yours does"),
    ],
)
def test_what_no_engine_needs_is_named(source, said):
    with pytest.raises(Refused) as caught:
        require_fair(source)
    assert f"an engine should not {said}" in str(caught.value)


def test_what_an_engine_may_do():
    require_fair("from . import mine\nimport math, kvlib.prefix\nx = evaluate(math.pi, timer)\n")
    with pytest.raises(SyntaxError, match="mine"):
        require_fair("def", "mine.py")
