"""The outline page has a row for every item, and no row points at something that is not there."""

import ast
import importlib
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
ITEMS = 62
LINES = {"A": 373, "B": 655}
TOPICS = (
    "Foundations",
    "Traditional caches",
    "PagedAttention",
    "Engines",
    "Smaller and farther",
    "Practice",
)
CLOSED = ("reproduced", "agrees", "corrected", "has limits", "refuted", "not testable")
OPEN = re.compile(rf"(?:partly (?P<half>{'|'.join(CLOSED)}); )?open: (?:{'|'.join(TOPICS)})")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|```\{(?:figure|image)\} (\S+)")
CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    number: str
    item: str
    outline: str
    verdict: str
    page: str
    kvlib: str
    decided: str


def table(path: Path, width: int) -> list[list[str]]:
    """Cells of every table row on a page, headers left out; a row of another width is an error."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        assert len(cells) == width, f"{path.name}: {len(cells)} cells, not {width}: {line}"
        if cells[0] not in ("#", "Claim", "---"):
            found.append(cells)
    return found


ROWS = [Row(*cells) for cells in table(ROOT / "book" / "outline.md", 7)]
CLAIMS = table(ROOT / "book" / "claims.md", 4)


def decided(verdict: str) -> bool:
    """Whether something on the page must prove this verdict; an unknown verdict is an error."""
    if verdict in CLOSED:
        return True
    match = OPEN.fullmatch(verdict)
    assert match, f"unknown verdict: {verdict!r}"
    return match["half"] is not None


def require_test(test_id: str) -> None:
    """A test function of a file, or an assertion that stands in a cell of a notebook."""
    name, _, proof = test_id.partition("::")
    path = ROOT / name
    assert path.is_file(), f"{test_id}: no such file"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = ["".join(c["source"]) for c in json.loads(text)["cells"] if "outputs" in c]
        assert proof.startswith("assert ") and any(proof in c for c in cells), f"{test_id}: gone"
        return
    functions = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert proof in functions, f"{test_id}: no such test"


def require_name(dotted: str) -> None:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part)
        return
    raise AssertionError(f"{dotted} cannot be imported")


def require_file(page: Path, target: str) -> None:
    """A relative link leads to a file of the repository, and its anchor is in that file."""
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    assert path.exists(), f"{page.relative_to(ROOT)}: dead link {target}"
    if anchor and path.suffix == ".md":
        text = path.read_text(encoding="utf-8")
        assert f"({anchor})=" in text, f"{page.relative_to(ROOT)}: no anchor {target}"


def prose(path: Path) -> str:
    """The Markdown of a page or a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def pages() -> list[Path]:
    found = [p for kind in ("md", "ipynb") for p in (ROOT / "book").rglob(f"*.{kind}")]
    found += [p for kind in ("md", "ipynb") for p in (ROOT / "chapters").rglob(f"*.{kind}")]
    return sorted(p for p in found if not any(part.startswith(".") for part in p.parts))


def test_every_item_has_one_row_in_order():
    assert [row.number for row in ROWS] == [str(n) for n in range(1, ITEMS + 1)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_a_row_names_its_item_and_lines(row):
    assert row.item
    spans = re.findall(r"([AB]):(\d+)(?:-(\d+))?", row.outline)
    assert spans, f"item {row.number} names no line of the outline"
    for part, first, last in spans:
        assert 1 <= int(first) <= int(last or first) <= LINES[part]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_a_decided_row_has_its_page_name_and_test(row):
    (page,) = LINK.findall(row.page)
    require_file(ROOT / "book" / "outline.md", page)
    if not decided(row.verdict):
        assert page.endswith("index.md"), f"open item {row.number} points past its chapter"
        assert (row.kvlib, row.decided) == ("", ""), f"open item {row.number} claims a proof"
        return
    names, tests = CODE.findall(row.kvlib), CODE.findall(row.decided)
    assert names and tests, f"item {row.number} is decided by nothing"
    for name in names:
        require_name(name)
    for test in tests:
        require_test(test)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[0][:40])
def test_a_decided_claim_names_its_test(claim):
    words, source, verdict, proof = claim
    assert words and source
    assert bool(proof) == decided(verdict), f"{words!r} is {verdict} by {proof or 'nothing'}"
    for test in CODE.findall(proof):
        require_test(test)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_internal_link_is_dead(page):
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    targets = LINK.findall(text) + [a or b for a, b in IMAGE.findall(prose(page))]
    for target in targets:
        if not re.match(r"[a-z]+:", target):
            require_file(page, target)
