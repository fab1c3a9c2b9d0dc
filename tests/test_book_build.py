"""What a page of the book weighs, and that the changed page is one that really changed."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def build(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    return importlib.import_module("book_build")


def page(folder, name, html, **files):
    for file, size in files.items():
        (folder / file).write_bytes(b"x" * size)
    (folder / name).write_text(html)
    return folder / name


def test_a_page_weighs_itself_and_what_it_names_once(build, tmp_path):
    html = (
        '<link rel="stylesheet" href="a.css?v=1"><link rel="next" href="next.html">'
        '<script src="a.js"></script><script src="a.js"></script><img src="p.png">'
        '<img src="https://elsewhere.example/q.png"><img src="gone.png">'
    )
    files = {"a.css": 10, "a.js": 200, "p.png": 3000, "next.html": 40_000}
    found = build.weigh(page(tmp_path, "one.html", html, **files))
    assert (found["html"], found["pictures"], found["styles_and_scripts"]) == (len(html), 3000, 210)
    assert 0 < found["html_gzip"] < len(html)


def test_the_heaviest_page_is_named(build, tmp_path):
    for folder in ("chapters", "book"):
        (tmp_path / folder).mkdir()
    page(tmp_path / "chapters", "small.html", "a" * 2000)
    page(tmp_path / "chapters", "big.html", "a" * 9000)
    page(tmp_path / "book", "map.html", "a" * 4000)
    found = build.weights(tmp_path)
    assert found["pages"] == 3
    assert found["page"]["html"] == {"median_kb": 4, "most_kb": 9, "heaviest": "chapters/big"}


def test_the_page_that_is_changed_stays_a_notebook_and_reads_otherwise(build, tmp_path):
    source = (ROOT / build.CHANGED).read_text(encoding="utf-8")
    copy = tmp_path / "page.ipynb"
    copy.write_text(source, encoding="utf-8")
    seen = {source}
    for round_ in range(build.AGAIN):
        build.change(copy, round_)
        seen.add(copy.read_text(encoding="utf-8"))
    assert len(seen) == 1 + build.AGAIN
    assert json.loads(copy.read_text(encoding="utf-8"))["cells"]
