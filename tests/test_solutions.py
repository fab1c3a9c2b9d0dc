"""Every folded solution in a notebook runs, and passes the check of its exercise."""

import json
import re
from pathlib import Path

import pytest

from kvlib import exercises
from kvlib.sizes import KVShape, format_bytes

ROOT = Path(__file__).resolve().parents[1]
SOLUTION = re.compile(r"`{4}\{dropdown\} Solution\n```python\n(.*?)```", re.DOTALL)
EXERCISE = re.compile(r"show\.exercise\(\"([\w-]+)\"\)")


def folded(path):
    """Each folded solution with the graded exercise it follows, or None for an open one."""
    slug = None
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if asked := EXERCISE.search(source):
            slug = asked.group(1)
        for solution in SOLUTION.findall(source):
            yield slug, solution
            slug = None


FOLDED = [
    pytest.param(slug, source, id=f"{path.stem}-{slug}")
    for path in sorted(ROOT.glob("chapters/*/*.ipynb"))
    for slug, source in folded(path)
]


@pytest.mark.parametrize("slug, source", FOLDED)
def test_a_folded_solution_is_right(slug, source):
    if slug is None:
        exec(
            compile(source, "solution", "exec"), {"KVShape": KVShape, "format_bytes": format_bytes}
        )
    else:
        assert exercises.check_source(slug, source).passed


def test_every_graded_exercise_of_a_notebook_has_its_solution_folded():
    asked = set()
    for path in ROOT.glob("chapters/*/*.ipynb"):
        asked |= set(EXERCISE.findall(path.read_text(encoding="utf-8").replace('\\"', '"')))
    assert asked == {param.values[0] for param in FOLDED} - {None}
    assert asked == set(exercises.slugs())
