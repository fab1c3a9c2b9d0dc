"""The directives that hold the whole book on one page: its map, its example, paths, outcomes.

They are made from the pages themselves and from `book/ideas.yml`, so none of them can fall behind.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
WORDS_A_MINUTE, LINE_S, EXERCISE_MIN = 200, 4, 5
SOLUTION = re.compile(r"^(`{3,})\{dropdown\}.*?^\1$", re.MULTILINE | re.DOTALL)
EXERCISE = re.compile(r"^\*\*(\d+ \([^)]*\))\.\*\*", re.MULTILINE)
PART = re.compile(r"^\*\*([A-Z][^*.]*)\.\*\*\s*\Z", re.MULTILINE)  # a label at a cell's end
GRADED = re.compile(r'show\.exercise\("([\w-]+)"\)')
EXAMPLE = {
    "budget": "the budget",
    "three": "the three requests",
    "conversation": "the conversation",
}


@dataclass(frozen=True)
class Page:
    """What a page says of itself.

    Attributes:
        name: below `chapters/`, without its ending.
        title: its first heading.
        promise: what a reader can do after it; empty where it does not say so.
        minutes: to read its words and lines and do its exercises, in steps of five.
        exercises: the name of each, and for a graded one its word in `exercises/`.
        example: which parts of the book's example return on it.
    """

    name: str
    title: str
    promise: str
    minutes: int
    exercises: tuple[tuple[str, str], ...]
    example: tuple[str, ...] = ()

    @property
    def link(self) -> str:
        """A link to it for a page of `book/`, its title the text."""
        return f"{{doc}}`{self.title} <../chapters/{self.name}>`"


@cache
def ideas() -> dict[str, Any]:
    """Returns what `ideas.yml` holds."""
    return yaml.safe_load((ROOT / "book" / "ideas.yml").read_text(encoding="utf-8"))


def cells(path: Path) -> list[tuple[str, str]]:
    """Returns kind and text of each cell of a page; a text page is one cell."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [("markdown", text)]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]


def page(name: str) -> Page:
    """Returns what a page of `chapters/` says of itself."""
    path = next(p for end in ("ipynb", "md") if (p := ROOT / "chapters" / f"{name}.{end}").exists())
    parts = cells(path)
    words = "\n\n".join(text for kind, text in parts if kind == "markdown")
    code = [line for kind, text in parts if kind == "code" for line in text.splitlines()]
    promise = re.search(r"\*\*((?:After|On) this page [^*]*\.)\*\*", words)
    named = tuple(_exercises(parts))
    read = len(SOLUTION.sub("", words).split()) / WORDS_A_MINUTE
    done = sum(bool(line.strip()) for line in code) * LINE_S / 60 + len(named) * EXERCISE_MIN
    return Page(
        name,
        re.search(r"^# (.+)$", words, re.MULTILINE)[1],
        " ".join(promise[1].split()) if promise else "",
        5 * max(1, round((read + done) / 5)),
        named,
        tuple(what for what in EXAMPLE if re.search(rf"<the-{what}>|\(the-{what}\)=", words)),
    )


def _exercises(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names them in order; `show.exercise` stands behind the words of the one it grades.

    One without a number has the name of the part of the text that it stands in.
    """
    found: list[tuple[str, str]] = []
    part: re.Match[str] | None = None
    for kind, text in parts:
        if kind == "markdown":
            found += [(name, "") for name in EXERCISE.findall(SOLUTION.sub("", text))]
            part = PART.search(text)
        for slug in GRADED.findall(text) if kind == "code" else ():
            if found and not found[-1][1]:
                found[-1] = (found[-1][0], slug)
            else:
                found.append((part[1] if part else slug.replace("-", " "), slug))
    return found


def chapters() -> dict[str, list[Page]]:
    """Returns the pages of each chapter, in the order of the contents."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    found = {}
    for chapter in (c for part in toc["parts"] for c in part["chapters"]):
        if chapter["file"].startswith("chapters/"):
            names = [section["file"].removeprefix("chapters/") for section in chapter["sections"]]
            found[chapter["file"].split("/")[1]] = [page(name) for name in names]
    return found


def hours(minutes: int) -> str:
    """Writes a time a reader plans with.

    >>> hours(35), hours(150)
    ('35 min', '2 h 30 min')
    """
    whole, rest = divmod(minutes, 60)
    return f"{whole} h {rest} min" if whole else f"{rest} min"


class _Written(SphinxDirective):
    has_content = False

    def lines(self) -> list[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parses the lines as if they stood on the page."""
        for path in (*ROOT.glob("chapters/*/*.ipynb"), ROOT / "book" / "ideas.yml"):
            self.env.note_dependency(str(path))
        part = nodes.container()
        self.state.nested_parse(StringList(self.lines(), "study"), self.content_offset, part)
        return part.children


class BookMap(_Written):
    """A table of every idea, its page and its time, chapter by chapter."""

    def lines(self) -> list[str]:
        """Writes one table for each chapter."""
        found: list[str] = []
        for number, (chapter, pages) in enumerate(chapters().items(), 1):
            total = hours(sum(each.minutes for each in pages))
            found += [f"**Chapter {number}: {_index(chapter)}**, {total}", ""]
            found += ["| Idea | Page | Minutes |", "| --- | --- | --- |"]
            rows = ((ideas()["ideas"][each.name], each.link, each.minutes) for each in pages)
            found += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
            found += [""]
        every = [each for pages in chapters().values() for each in pages]
        whole = sum(each.minutes for each in every)
        without = whole - EXERCISE_MIN * sum(len(each.exercises) for each in every)
        return [*found, f"In all {hours(whole)}; without the exercises {hours(without)}."]


class ExamplePath(_Written):
    """Where the book's one example returns, and what becomes of it there."""

    def lines(self) -> list[str]:
        """Writes one row for each page that links it, in the order of the contents."""
        found = ["| Page | What returns | What becomes of it |", "| --- | --- | --- |"]
        for each in (each for pages in chapters().values() for each in pages if each.example):
            parts = [f"{{ref}}`{EXAMPLE[what]} <the-{what}>`" for what in each.example]
            told = ideas()["example"].get(each.name, "")
            found.append(f"| {each.link} | {', '.join(parts)} | {told} |")
        return found


class ReadingPaths(_Written):
    """For each kind of reader the pages to read, with their times."""

    def lines(self) -> list[str]:
        """Writes one list for each path."""
        known = {each.name: each for pages in chapters().values() for each in pages}
        found: list[str] = []
        for who, path in ideas()["paths"].items():
            pages = [known[name] for name in path["pages"]]
            total = hours(sum(each.minutes for each in pages))
            found += [f"**For the {who}**, {total}. {path['why']}", ""]
            found += [f"{n}. {each.link}, {each.minutes} min" for n, each in enumerate(pages, 1)]
            found += [""]
        return found


class Outcomes(_Written):
    """What each page promises, and the exercises that show whether you can."""

    def lines(self) -> list[str]:
        """Writes one entry for each page; a script marks what was passed."""
        found = ["```{raw} html", '<p class="kv-progress" role="status"></p>', "```"]
        for chapter, pages in chapters().items():
            found += ["", f"**{_index(chapter)}**", ""]
            for each in pages:
                if each.exercises:
                    promise = _lower(each.promise) or "the self-test."
                    found += [f"- {each.link}: {promise} {_marks(each)}"]
        return found


def _index(chapter: str) -> str:
    return f"[{page(f'{chapter}/index').title}](../chapters/{chapter}/index.md)"


def _lower(promise: str) -> str:
    return re.sub(r"^(?:After|On) this page ", "", promise)


def _marks(each: Page) -> str:
    names = []
    for name, slug in each.exercises:
        mark = f'<span class="kv-mark" data-exercise-name="{slug}"></span>' if slug else ""
        names.append((f"exercise {name}" if name[0].isdigit() else f'"{name}"') + mark)
    return f"*Shown by* {'; '.join(names)}." if names else ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directives, and the script that marks what was passed."""
    app.add_directive("book-map", BookMap)
    app.add_directive("example-path", ExamplePath)
    app.add_directive("reading-paths", ReadingPaths)
    app.add_directive("outcomes", Outcomes)
    app.add_js_file("progress.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
