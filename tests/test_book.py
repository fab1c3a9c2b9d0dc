"""The book's sources: the contents are complete, the words are ours, the cover figure adds up."""

import ast
import hashlib
import importlib.util
import json
import re
import types
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CHINESE = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
CHINESE_PAGES = {"book/outline.md", "book/claims.md", "book/glossary.md"}
MACHINE = re.compile(r"(?<![\w./~-])/(?:tmp|work|root|home|opt|Users|mnt|var)/")
SOURCES = sorted(
    path
    for folder in ("book", "chapters")
    for kind in ("md", "ipynb")
    for path in (ROOT / folder).rglob(f"*.{kind}")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def listed() -> list[str]:
    """Every file the table of contents names, without its ending."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))

    def files(entry):
        return [entry["file"]] + [f for part in entry.get("sections", []) for f in files(part)]

    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *(file for chapter in chapters for file in files(chapter))]


def terms() -> list[tuple[list[str], str]]:
    """Every glossary entry: its terms, one a line, and the first line of its definition."""
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"```\{glossary\}\n(.*?)```", text, re.DOTALL):
        entries = re.findall(r"^((?:\S.*\n)+)  (.*)", block, re.MULTILINE)
        found += [(names.splitlines(), definition) for names, definition in entries]
    return found


def extension(module: str):
    spec = importlib.util.spec_from_file_location(module, ROOT / "book" / "_ext" / f"{module}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_every_page_is_in_the_contents_once():
    pages = [name(path.with_suffix("")) for path in SOURCES]
    assert not (missing := set(pages) - set(listed())), f"_toc.yml lists no {sorted(missing)}"
    assert sorted(listed()) == sorted(pages), "_toc.yml lists a page twice, or one without a file"


def unnamed(index: str, pages: list[str]) -> list[str]:
    """The pages to which a chapter's index has neither a link nor a `doc`."""
    return [page for page in pages if not re.search(rf"[(<`]{page}(\.ipynb|\.md)?[)>`]", index)]


def test_the_index_of_a_chapter_names_each_of_its_pages():
    for index in sorted(ROOT.glob("chapters/0*/index.md")):
        pages = [path.stem for path in SOURCES if path.parent == index.parent and path != index]
        missing = unnamed(index.read_text(encoding="utf-8"), pages)
        assert not missing, f"{name(index)} names no {missing}"


def test_a_page_that_an_index_only_mentions_is_not_named():
    index = "See {doc}`one`, [two](two.ipynb) and {doc}`the third <three>`; four, `fourteen`."
    assert unnamed(index, ["one", "two", "three"]) == []
    assert unnamed(index, ["four", "teen"]) == ["four", "teen"]


def test_all_five_chapters_stand():
    indexes = [file for file in listed() if re.fullmatch(r"chapters/0\d_\w+/index", file)]
    assert [file[9:11] for file in indexes] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix == ".ipynb"], ids=name)
def test_no_notebook_is_empty(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert any(cell["cell_type"] == "code" for cell in cells)


def opening(path: Path) -> str:
    """What a page says of itself first: its first cell, or the whole of a page of text."""
    text = path.read_text(encoding="utf-8")
    return "".join(json.loads(text)["cells"][0]["source"]) if path.suffix == ".ipynb" else text


TIME = re.compile(r"\b(?:minutes?|hours?)\b", re.IGNORECASE)


@pytest.mark.parametrize("path", [p for p in SOURCES if "chapters" in p.parts], ids=name)
def test_no_page_of_a_chapter_says_how_long_it_takes(path):
    # The map counts the minutes of every page; a typed number would soon contradict it.
    assert not TIME.findall(opening(path))


def test_a_typed_time_would_be_found(tmp_path):
    page = {
        "cells": [{"cell_type": "markdown", "source": ["# A page\n", "Half an hour; a laptop."]}]
    }
    (tmp_path / "page.ipynb").write_text(json.dumps(page))
    (tmp_path / "index.md").write_text("About forty-five\nminutes.")
    assert [TIME.findall(opening(tmp_path / n)) for n in ("page.ipynb", "index.md")] == [
        ["hour"],
        ["minutes"],
    ]


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_prose_is_english_and_names_no_machine(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        # Notebooks may store other scripts as \uXXXX; read them as a reader would.
        text = json.dumps(json.loads(text), ensure_ascii=False)
    if name(path) not in CHINESE_PAGES:
        assert not CHINESE.findall(text)
    assert not MACHINE.findall(text)
    assert "interact(" not in text


def test_the_bibliography_can_be_read():
    from pybtex.database import parse_file

    entries = parse_file(str(ROOT / "book" / "references.bib")).entries
    assert all(entry.fields.get("title") and entry.fields.get("year") for entry in entries.values())


def test_terms_of_the_glossary_stand_apart():
    lines = (ROOT / "book" / "glossary.md").read_text("utf-8").splitlines()
    pairs = pairwise(lines)
    assert not [term for above, term in pairs if above.startswith("  ") and term[:1].isalpha()]


def test_every_cited_key_is_in_the_bibliography_once():
    keys = re.findall(
        r"^@\w+\{(\w+),", (ROOT / "book" / "references.bib").read_text("utf-8"), re.MULTILINE
    )
    assert len(keys) == len(set(keys))
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    cited = re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text)
    assert cited
    assert {key.strip() for group in cited for key in group.split(",")} <= set(keys)


def test_every_public_module_is_on_one_api_page():
    text = "".join(path.read_text("utf-8") for path in (ROOT / "book").glob("api*.md"))
    shown = re.findall(r"automodule:: (\S+)", text)
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "kvlib").rglob("*.py")
        if not path.name.startswith("_")
    }
    missing = sorted(modules - set(shown))
    assert not missing, f"no page book/api*.md has an automodule:: for {missing}"
    assert sorted(shown) == sorted(modules), "a module is shown twice, or is gone"


@pytest.mark.parametrize("path", sorted((ROOT / "book").glob("api*.md")), ids=name)
def test_the_head_of_an_api_page_lists_the_modules_below_it(path):
    text = path.read_text(encoding="utf-8")
    shown = re.findall(r"automodule:: (\S+)", text)
    head = text.partition("\n## ")[0]
    listed_above = re.findall(r"\{py:mod\}`~?([\w.]+)`", head.partition("Modules:")[2])
    missing = [module for module in shown if module not in listed_above]
    assert not missing, f"{name(path)}: 'Modules:' at its head lists no {missing}"
    assert len(listed_above) == len(shown), f"{name(path)} lists a module that is not below"


def test_every_term_has_its_chinese_word_and_appears_once():
    words = [word.lower() for names, _ in terms() for word in names]
    assert len(words) > 50 and len(words) == len(set(words))
    for names, definition in terms():
        chinese = re.match(r"\(([^)]+)\) \S", definition)
        assert chinese and CHINESE.search(chinese[1]), f"{names} have no Chinese word"


def test_the_cover_figure_is_drawn_to_its_numbers():
    slots = 12 * 2**30 // 819_200
    requests = slots // 2_048
    blocks, left = slots // 16, slots - requests * 2_048
    need = [-(-tokens // 16) for tokens in (500, 80, 1_200)]
    fit = used = 0
    while used + need[fit % 3] <= blocks:
        used += need[fit % 3]
        fit += 1
    assert (slots, requests, left, fit, blocks - used) == (15_728, 7, 1_392, 26, 50)
    svg = (ROOT / "book" / "_static" / "one_budget.svg").read_text(encoding="utf-8")
    words = " ".join(ElementTree.fromstring(svg).itertext())
    for number in (f"{slots:,}", f"{requests} requests", f"{left:,}", f"{fit} requests"):
        assert number in words


@pytest.mark.parametrize("path", sorted((ROOT / "book" / "_static").glob("*.svg")), ids=name)
def test_a_picture_says_what_it_shows(path):
    root = ElementTree.parse(path).getroot()
    assert root.findtext("{http://www.w3.org/2000/svg}title")


def test_a_record_is_stale_when_the_code_it_measured_changed(tmp_path):
    tables = extension("measured_tables")
    (tmp_path / "code.py").write_text("x = 1\n", encoding="utf-8")
    digest = hashlib.sha256(b"x = 1\n").hexdigest()
    assert tables.changed({"code": {"code.py": digest}}, tmp_path) == []
    (tmp_path / "code.py").write_text("x = 2\n", encoding="utf-8")
    assert tables.changed({"code": {"code.py": digest}}, tmp_path) == ["code.py"]
    assert tables.changed({"code": {"gone.py": digest}}, tmp_path) == ["gone.py"]


def test_rows_with_names_and_equal_keys_are_one_table():
    """A table for each engine of the atlas made half a megabyte of page."""
    tables = extension("measured_tables")
    lines = tables._data("*loads*", {"one": {"used": 1, "free": 2}, "two": {"used": 3, "free": 4}})
    assert "| what | used | free |" in lines
    assert lines.count("| two | 3 | 4 |") == 1
    assert len([line for line in lines if line.startswith("| what")]) == 1
    some = tables._data("*loads*", {"one": {"used": 1}, "two": {"used": 3, "free": 4}})
    assert "| one | 1 |  |" in some, "a row without a time is a row all the same"
    wide = dict.fromkeys("abcdefghi", 1)
    assert "| one | a 1, b 1, c 1" in str(tables._data("*loads*", {"one": wide, "two": wide}))
    deep = {name: {"engines": {"one": {"used": 1}, "two": {"used": 3}}} for name in ("a", "b")}
    assert tables._data("*loads*", deep).count("| two | 3 |") == 2, "nested rows in one cell"


def test_a_cell_of_a_record_reads_as_it_was_written():
    """`__init__` was bold; a bar ended its cell."""
    tables = extension("measured_tables")
    assert tables._cell("a.__init__ -> x | y") == r"a.\_\_init\_\_ -> x \| y"
    assert tables._cell(["`__slots__`", 0.25]) == "`__slots__`, 0.25"


def test_a_new_record_has_its_page_read_again(monkeypatch):
    """It is no dependency of a page that was read before it came."""
    tables = extension("measured_tables")
    app, env = (types.SimpleNamespace() for _ in range(2))
    app.srcdir, env.all_docs = str(ROOT), {"book/measurements": 0.0}
    now = tables._names(ROOT / "chapters" / "measured")
    assert len(now) > 40 and tables._outdated(app, env) == []
    tables._listing(env).update({"book/measurements": now[:-1], "gone": []})
    assert tables._outdated(app, env) == ["book/measurements"]
    tables._listing(env)["book/measurements"] = now
    assert tables._outdated(app, env) == []


def test_the_file_of_a_module_is_found_without_importing_it():
    files = extension("module_files")
    assert files.module_file(None, "kvlib.tensors.hf").endswith("kvlib/tensors/hf.py")
    assert files.module_file(None, "kvlib.show").endswith("show/__init__.py")
    assert files.module_file(None, "torch") is None


def test_records_show_their_provenance_and_data():
    tables = extension("measured_tables")
    record = {
        "name": "decode.cuda",
        "date": "2026-01-02",
        "machine": "a card",
        "versions": {"torch": "2.13.0"},
        "commit": "abc1234",
        "command": "python measure/decode.py",
        "code": {"kvlib/never_there.py": "0"},
        "data": {"tokens": 16, "rows": [{"length": 128, "seconds": 0.123456}]},
    }
    text = "\n".join(tables.markdown(record))
    for part in (
        "a card",
        "2026-01-02",
        "torch 2.13.0",
        "`abc1234`",
        "**stale**",
        "| 128 | 0.1235 |",
    ):
        assert part in text
    assert tables.device(record) == "gpu"
    assert tables.EMPTY["gpu"] == "Not yet run on a GPU."


def test_a_page_names_the_records_it_shows_that_are_stale(tmp_path):
    tables = extension("measured_tables")
    record = {"date": "", "machine": "", "versions": {}, "commit": "", "command": "", "data": {}}
    for record_name in ("speed.cpu", "speed_up.cpu"):
        path = tmp_path / f"{record_name}.json"
        path.write_text(json.dumps(record | {"name": record_name, "code": {"gone.py": "0"}}))
    for text in ('measured.load("speed.cpu")', 'f"speed.{device}"'):
        assert [each["name"] for each in tables.used(text, tmp_path)] == ["speed.cpu"]
    assert tables.used("a speed of light", tmp_path) == []
    words = tables.note(tables.records(tmp_path)).astext()
    assert "taken: speed.cpu, speed_up.cpu. The" in words


def docstrings(text: str) -> list[str]:
    """Every docstring of a module, as Sphinx gets it."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(n) for n in ast.walk(ast.parse(text)) if isinstance(n, kinds)]
    return [each for each in found if each]


SECTION = r"(?:Args|Attributes|Raises|Returns|Yields|Example|Examples|Note|Source|Shapes):\n"
BADLY_SHOWN = {
    # `num_ranks: R.` is the beginning of a list whose items are lettered.
    "a lone letter": re.compile(r"(?m)^(?: +\w+: +)?[A-Za-z]\.$"),
    # What stands above an indented line is a term, in bold; code needs `::` above it.
    "an indented line below a line": re.compile(
        rf"(?m)^(?!{SECTION})\w[^\n]*[^:\n]\n +(?!>>>)\S|^(?!{SECTION})\w[^\n]*\w:\n +\S"
    ),
    "a quotation": re.compile(rf"(?m)^(?!{SECTION})\w[^\n]*(?<!::)\n\n +\S"),
    # What stands before a colon is the type of what is returned.
    "a sentence for a type": re.compile(
        r"(?m)^(?:Returns|Yields):\n +(?!`)[^\n:`]* [^\n:`]*:(?= |$)"
    ),
    # RST takes a single backslash for an escape.
    "a lost backslash": re.compile(r"(?m)^(?! *(?:>>>|\.\.\.) )[^\n`\\]*(?<!\\)\\(?!\\)"),
}


def badly_shown(text: str) -> list[tuple[str, str]]:
    """Which docstrings of a module the API page would not show as they were meant, and why."""
    return [
        (kind, found[0])
        for docstring in docstrings(text)
        for kind, pattern in BADLY_SHOWN.items()
        if (found := pattern.search(docstring))
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "kvlib").rglob("*.py")), ids=name)
def test_docstrings_are_shown_as_they_were_meant(path):
    assert badly_shown(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("docstring", "kind"),
    [
        ("Does.\n\nArgs:\n    num_ranks: R.\n    size: B, slots.", "a lone letter"),
        ("R.", "a lone letter"),
        ("Does.\n\nSource: a paper,\n    of 2001.", "an indented line below a line"),
        ("Does; and\n\n    run this\n\nto begin.", "a quotation"),
        ("Does so:\n\n    run(this)\n\nNo more.", "a quotation"),
        ("Does.\n\nReturns:\n    How many: as many as fit.", "a sentence for a type"),
        ("Does.\n\nYields:\n    Each move: then go on.", "a sentence for a type"),
        ('Textures "/" and "\\".', "a lost backslash"),
    ],
)
def test_a_docstring_that_is_badly_shown_is_found(docstring, kind):
    assert [found[0] for found in badly_shown(f"r'''{docstring}'''")] == [kind]


@pytest.mark.parametrize(
    "docstring",
    [
        "Does.\n\nArgs:\n    num_ranks: the ranks, R.\n        More.\n\nExample:\n    >>> 1\n    1",
        "Does so::\n\n    run(this)\n\nSource: a paper,\nof 2001.",
        "Does.\n\nReturns:\n    [B, T], as `a: b` says.\n\nExample:\n    >>> '\\n' ",
        'Textures "/" and "\\\\".',
    ],
)
def test_a_docstring_that_is_shown_well_is_left_alone(docstring):
    assert badly_shown(f"r'''{docstring}'''") == []


def raised(docstring: str) -> list[str]:
    """What napoleon makes of "Raises", by the names it takes for errors."""
    from sphinx.ext.napoleon import Config, GoogleDocstring

    lines = extension("api_docstrings").sentences_out(docstring.splitlines())
    made = str(GoogleDocstring(lines, Config(), what="function"))
    return re.findall(r"(?m)^:raises ([^:]*):", made)


def test_no_sentence_is_taken_for_an_error():
    errors = [
        error
        for path in sorted((ROOT / "kvlib").rglob("*.py"))
        for docstring in docstrings(path.read_text(encoding="utf-8"))
        for error in raised(docstring)
    ]
    assert len(errors) > 100
    assert not [error for error in errors if not re.fullmatch(r"[\w.]+(, [\w.]+)*", error)]


def test_a_sentence_about_all_errors_is_a_paragraph_below_them():
    out = extension("api_docstrings").sentences_out
    head, tail = ["Does.", "", "Raises:"], ["", "Example:", "    >>> 1"]
    errors = ["    KeyError, ValueError: a long", "        reason.", "    kvlib.Lost: it is."]
    assert out([*head, *errors, *tail]) == [*head, *errors, *tail]
    said = ["    In each case: nothing", "        changes."]
    text = ["", "In each case: nothing changes."]
    assert out([*head, *errors, *said, *tail]) == [*head, *errors, *text, *tail]
    alone = ["Does.", "", ":Raises: In each case: nothing changes."]
    assert out([*head, *said, *tail]) == [*alone, *tail]
    assert out([*head, *said]) == [*alone, ""]


@pytest.mark.parametrize(
    ("signature", "shown"),
    [
        ("(a: list[int] = <factory>, b: int = 0)", "(a: list[int] = ..., b: int = 0)"),
        ("(f: ~a.F = <function Configuration.<lambda>>)", "(f: ~a.F = ...)"),
        ("(f: ~a.F = <function newest>)", "(f: ~a.F = newest)"),
        ("(c: type[~a.C] = <class 'a.C'>)", "(c: type[~a.C] = C)"),
        ("(x: object = <object object at 0x7f>)", "(x: object = ...)"),
        ("(source: str, name: str = '<engine>')", "(source: str, name: str = '<engine>')"),
        ("(a: int, _b: ~a.B = <factory>, *, c=1)", "(a: int, *, c=1)"),
        ("()", "()"),
    ],
)
def test_sphinx_can_read_every_signature(signature, shown):
    from sphinx.util.inspect import signature_from_str

    readable = extension("api_docstrings").readable(signature)
    assert readable == shown
    signature_from_str(readable)
