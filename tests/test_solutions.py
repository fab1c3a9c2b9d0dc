"""Every folded solution in a notebook runs, and passes the check of its exercise."""

import json
import re
from pathlib import Path

import pytest

from kvlib import exercises
from kvlib.sizes import KVShape, format_bytes

ROOT = Path(__file__).resolve().parents[1]
FOLDED_TEXT = re.compile(r"^`{4}\{dropdown\} .*?^`{4}$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NUMBERED = re.compile(r"^\*\*(\d+ \([^)]*\))\.\*\*", re.MULTILINE)
HEADING = re.compile(r"^## ", re.MULTILINE)
EXERCISE = re.compile(r"show\.exercise\(\"([\w-]+)\"\)")


def folded(path):
    """Each folded solution with the graded exercise it follows, or None for an open one."""
    slug = None
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if asked := EXERCISE.search(source):
            slug = asked.group(1)
        for text in FOLDED_TEXT.findall(source):
            for solution in CODE.findall(text):
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


@pytest.mark.parametrize("path", sorted(ROOT.glob("chapters/*/*.ipynb")), ids=lambda p: p.stem)
def test_folded_code_fits_its_box(path):
    """As code cells do; 79 letters are what the column holds beside both sidebars."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    lines = (line for text in texts for code in CODE.findall(text) for line in code.splitlines())
    assert not [line for line in lines if len(line) > 79]


def test_what_an_exercise_starts_from_fits_its_box():
    wide = {}
    for slug in exercises.slugs():
        if too_long := [s for s in exercises.load(slug).stub.splitlines() if len(s) > 79]:
            wide[slug] = too_long
    assert not wide


def test_every_graded_exercise_of_a_notebook_has_its_solution_folded():
    asked = set()
    for path in ROOT.glob("chapters/*/*.ipynb"):
        asked |= set(EXERCISE.findall(path.read_text(encoding="utf-8").replace('\\"', '"')))
    bare = sorted(asked - {param.values[0] for param in FOLDED})
    assert not bare, (
        f"{bare}: behind show.exercise stands ````{{dropdown}} Solution, in four backticks, "
        "and in it ```python with what the stub asks for"
    )
    hidden = sorted(set(exercises.slugs()) - asked)
    assert not hidden, f"no notebook shows the exercises {hidden}"


def without_a_solution(cells):
    """Numbered exercises with nothing folded between them and the next one or the next heading."""
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    parts = NUMBERED.split(text)
    return [
        number
        for number, rest in zip(parts[1::2], parts[2::2], strict=True)
        if "{dropdown}" not in HEADING.split(rest)[0]
    ]


@pytest.mark.parametrize("path", sorted(ROOT.glob("chapters/*/*.ipynb")), ids=lambda p: p.stem)
def test_every_exercise_of_any_grade_has_its_solution_folded(path):
    assert not without_a_solution(json.loads(path.read_text(encoding="utf-8"))["cells"])


def test_an_exercise_without_a_solution_is_found():
    folded_text = "````{dropdown} Solution\nYes.\n````"
    texts = [f"**1 (open).** Why?\n\n{folded_text}", "**2 (apply).** How?", "**3 (recall).** Who?"]
    texts += [folded_text, "**4 (open).** When?", f"## Next\n\n{folded_text}"]
    cells = [{"cell_type": "markdown", "source": text.splitlines(keepends=True)} for text in texts]
    assert without_a_solution(cells) == ["2 (apply)", "4 (open)"]
