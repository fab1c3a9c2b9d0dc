"""The book says which version it is, and where it is published once that is set in one place."""

import json
import re
from pathlib import Path

import nbformat
import pytest
import yaml

import built_book
import kvlib

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ("mybinder.org", "colab.research.google.com")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def small_book(folder: Path, **settings: str) -> str:
    """The page of a book of one notebook, built with these settings."""
    from sphinx.application import Sphinx

    source = folder / "source"
    source.mkdir()
    words = [nbformat.v4.new_markdown_cell("# A page\n\nIts first words.", id="c0")]
    cells = [*words, nbformat.v4.new_code_cell("1 + 1", id="c1")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), source / "index.ipynb")
    config = {
        "extensions": "myst_nb,sphinxext.opengraph,publishing",
        "html_theme": "sphinx_book_theme",
        "nb_execution_mode": "off",
        "ogp_social_cards": {"enable": False},
        "project": "A book",
        **{f"book_{name}": value for name, value in settings.items()},
    }
    built_book.extension("publishing")
    app = Sphinx(source, None, folder / "html", folder / "trees", "html", config, status=None)
    app.build()
    return (folder / "html" / "index.html").read_text(encoding="utf-8")


def test_without_an_address_no_button_leads_to_one(tmp_path):
    page = small_book(tmp_path)
    assert not [host for host in (*LAUNCH, "github.com/us/book", "og:url") if host in page]
    assert "_sources/index.ipynb" in page  # to be downloaded
    assert re.search(r'<meta name="description" content="Its first words', page)


def test_one_setting_brings_every_button(tmp_path):
    page = small_book(
        tmp_path, repository="https://github.com/us/book/", address="https://us.example/book"
    )
    assert "https://mybinder.org/v2/gh/us/book/main?urlpath=lab/tree/index.ipynb" in page
    assert "https://colab.research.google.com/github/us/book/blob/main/index.ipynb" in page
    assert "https://github.com/us/book/edit/main/index.ipynb" in page
    assert 'property="og:url" content="https://us.example/book/index.html"' in page
    assert '<link rel="canonical" href="https://us.example/book/index.html"' in page


def test_the_version_is_written_again_on_pages_that_were_not(tmp_path):
    stamp = built_book.extension("publishing").stamp
    page = tmp_path / "below" / "a.html"
    page.parent.mkdir()
    page.write_text('<p><span class="kv-version"></span></p>')
    for said in ("Version 1", r"Version 2, commit \1"):
        stamp(tmp_path, said)
        assert page.read_text() == f'<p><span class="kv-version">{said}</span></p>'


def test_outside_a_repository_the_version_says_so(tmp_path, monkeypatch):
    publishing = built_book.extension("publishing")
    (tmp_path / "kvlib").mkdir()
    (tmp_path / "kvlib" / "__init__.py").write_text('__version__ = "7.8"\n')
    monkeypatch.setattr(publishing, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert publishing.version() == "Version 7.8, not built from a repository"


def test_citation_and_changelog_name_this_version():
    citation = yaml.safe_load(read("CITATION.cff"))
    needed = {"cff-version", "message", "title", "authors", "version", "date-released", "license"}
    assert needed <= set(citation)
    numbers = re.findall(r"^## (\d+\.\d+\.\d+)", read("CHANGELOG.md"), re.MULTILINE)
    assert citation["version"] == numbers[0] == kvlib.__version__
    assert numbers == sorted(numbers, key=lambda n: [*map(int, n.split("."))], reverse=True)


def test_the_chinese_readme_has_the_two_commands_and_ten_lines_for_each_chapter():
    chinese, english = read("README.zh.md"), read("README.md")
    for command in ("make book", "make test"):
        assert f"\n{command} " in chinese and f"\n{command} " in english
    parts = re.split(r"^### ", chinese, flags=re.MULTILINE)[1:]
    assert [re.search(r"chapters/(\d\d_\w+)/index.md", each)[1] for each in parts] == sorted(
        path.name for path in (ROOT / "chapters").glob("0*")
    )
    for number, part in enumerate(parts, 1):
        part = part.partition("\n## ")[0]
        assert f"大纲原题：第{number}章" in part
        assert len(re.findall(r"^- ", part, re.MULTILINE)) == 10
    for target in re.findall(r"\]\(([^)]+)\)", chinese):
        assert (ROOT / target).is_file(), target


@pytest.mark.browser
def test_a_chinese_word_of_the_glossary_is_in_the_search_index(book):
    text = (book / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    place = index["docnames"].index("book/glossary")
    words = re.findall(r"^  \(([^)]*)\)", read("book/glossary.md"), re.MULTILINE)
    assert len(words) > 100
    for word in words:
        for part in re.findall(r"[\u4e00-\u9fff]+", word):
            found = [index[kind].get(part) for kind in ("terms", "titleterms")]
            pages = [
                p for each in found if each is not None for p in (each, [each])[type(each) is int]
            ]
            assert place in pages, part


@pytest.mark.browser
def test_a_chinese_word_leads_to_the_glossary(book, site, browser):
    with built_book.opened(browser, site) as (page, faults):
        page.goto(f"{site}search.html?q=块表")
        found = page.locator("#search-results li a").first
        found.wait_for()
        assert "glossary.html" in found.get_attribute("href")
        assert faults == []


@pytest.mark.browser
def test_every_page_states_its_version(book):
    said = rf'<span class="kv-version">Version {re.escape(kvlib.__version__)}, [^<]+</span>'
    for name in built_book.pages(book):
        assert re.search(said, (book / name).read_text(encoding="utf-8")), name


def test_binder_takes_a_python_that_the_library_runs_on():
    asked = re.fullmatch(r"python-(\d+)\.(\d+)\n", read("runtime.txt"))
    least = re.search(r'requires-python = ">=(\d+)\.(\d+)"', read("pyproject.toml"))
    assert tuple(map(int, asked.groups())) >= tuple(map(int, least.groups()))


def test_what_colab_is_told_to_install_is_what_the_library_offers():
    offered = re.search(
        r"\[project.optional-dependencies\]\n(.*?)\n\n", read("pyproject.toml"), re.S
    )
    told = re.search(r'"/content/book\[([\w,]+)\]"', read("book/how_to_run.md"))
    assert told[1].split(",") == re.findall(r"^(\w+) =", offered[1], re.M)
