"""The pages made from all others: the map, the paths, the outcomes, the timeline."""

import re
from pathlib import Path

import pytest
import yaml

import built_book
from kvlib import exercises

ROOT = Path(__file__).resolve().parents[1]
GRADES = ("recall", "apply", "open")
SELF_TEST = ["Transformers", "Deep-learning frameworks", "Computer architecture", "Python"]


@pytest.fixture(scope="module")
def study():
    return built_book.extension("study")


@pytest.fixture(scope="module")
def pages(study):
    return [page for pages in study.chapters().values() for page in pages]


def test_every_page_has_its_ideas_and_no_others_have(study, pages):
    names, lines = [page.name for page in pages], list(study.ideas()["ideas"])
    missing = [name for name in names if name not in lines]
    assert not missing, f"book/ideas.yml has no line for {missing}"
    assert names == lines, "book/ideas.yml is not in the order of _toc.yml, or has a line too many"


def test_every_page_to_which_the_example_returns_says_what_becomes_of_it(study, pages):
    returns = [page.name for page in pages if page.example]
    assert list(study.ideas()["example"]) == returns


def test_what_becomes_of_the_example_is_said_in_the_pages_own_numbers(study):
    for name, told in study.ideas()["example"].items():
        page = (ROOT / "chapters" / f"{name}.ipynb").read_text(encoding="utf-8")
        strange = [n for n in re.findall(r"\d[\d,.]*\d|\d", told) if n not in page]
        assert not strange, f"{name} does not have {strange}"


def test_a_path_goes_forward_through_pages_that_exist(study, pages):
    names = [page.name for page in pages]
    assert len(study.ideas()["paths"]) == 4
    for path in study.ideas()["paths"].values():
        places = [names.index(name) for name in path["pages"]]
        assert places == sorted(set(places))


def test_minutes_are_counted_from_the_page(study, tmp_path, monkeypatch):
    chapter = tmp_path / "chapters" / "c"
    chapter.mkdir(parents=True)
    promise = "**After this page you can read.**"
    solution = "```{dropdown} Solution\n" + "word " * 900 + "\n```"
    text = f"# A page\n\n{promise}\n\n{'word ' * 3990}\n\n**1 (open).** Do it.\n\n{solution}\n"
    (chapter / "p.md").write_text(text)
    monkeypatch.setattr(study, "ROOT", tmp_path)
    page = study.page("c/p")
    assert page.minutes == 25  # 20 of words, 5 of one exercise; the solution is folded
    assert (page.title, page.promise) == ("A page", "After this page you can read.")
    assert page.exercises == (("1 (open)", ""),)


def test_a_promise_without_its_full_stop_does_not_run_on_to_the_next_bold_words(study, tmp_path):
    (tmp_path / "chapters").mkdir()
    text = "# A page\n\n**After this page you can read**\n\nWords.\n\n**1 (open).** Do it.\n"
    (tmp_path / "chapters" / "p.md").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "ROOT", tmp_path)
        assert study.page("p").promise == ""


def test_an_exercise_is_recall_apply_or_open(pages):
    found = [name for page in pages for name, _ in page.exercises]
    for name in found:
        assert re.fullmatch(rf"\d \(({'|'.join(GRADES)})\)", name) or name in SELF_TEST, name
    assert len(found) >= 100
    for grade in GRADES:
        assert sum(grade in name for name in found) >= 20


def test_a_part_of_a_page_shows_an_outcome_by_its_own_name(study, pages):
    scoreboard = next(page for page in pages if page.name == "01_foundations/scoreboard")
    assert [name for name, _ in scoreboard.exercises] == SELF_TEST
    marks = study._marks(scoreboard)
    assert '"Deep-learning frameworks"<span' in marks and "exercise" not in marks.split("data-")[0]
    numbered = study._marks(next(page for page in pages if page.exercises[0][0] == "1 (recall)"))
    assert "exercise 1 (recall)" in numbered


def test_every_graded_exercise_shows_one_outcome(pages):
    graded = [slug for page in pages for _, slug in page.exercises if slug]
    hidden = sorted(set(exercises.slugs()) - set(graded))
    assert not hidden, f"no page shows the exercises {hidden}; a cell says show.exercise(<slug>)"
    assert sorted(graded) == sorted(exercises.slugs()), "an exercise is on two pages"
    assert len(graded) >= 40


def test_every_page_promises_one_thing(pages):
    without = {page.name for page in pages if not page.promise}
    without -= {"01_foundations/challenges", "01_foundations/scoreboard"}
    assert not without, f"no bold sentence '**After this page you can … .**' in {sorted(without)}"


def test_the_timeline_is_in_order_and_its_dates_are_those_of_its_sources():
    bib = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    entries = dict(re.findall(r"@\w+\{(\w+),(.*?)\n\}", bib, re.DOTALL))
    rows = re.findall(
        r"^\| (\d{4}(?:-\d\d)?) \| (.*?) \|", (ROOT / "book/timeline.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 30
    assert [when[:4] for when, _ in rows] == sorted(when[:4] for when, _ in rows)
    months = [when for when, _ in rows if "-" in when]
    assert months == sorted(months)
    for when, what in rows:
        keys = re.findall(r"\{cite\}`(\w+)`", what)
        assert keys or "](https://" in what, what
        for key in keys:
            if "-" in when:
                year, month = re.search(
                    r"(?:arXiv:|eprint = \{)(\d\d)(\d\d)\.", entries[key]
                ).groups()
                assert when == f"20{year}-{month}", key
            else:
                assert re.search(rf"year\s*=\s*[{{\"]?{when}", entries[key]), key


def test_the_contents_hold_the_pages_made_of_all_others():
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    files = [entry["file"] for part in yaml.safe_load(toc)["parts"] for entry in part["chapters"]]
    for name in ("map", "outcomes", "timeline", "unsolved"):
        assert f"book/{name}" in files
