"""The decision tree leads to pages that are there."""

import json
import re
from pathlib import Path

import pytest

from kvlib.field_guide import TITLES, TREES, leaf
from kvlib.show.drawings import find

ROOT = Path(__file__).resolve().parents[1]
ENDS = [(s, a, b) for s in TREES for a in (True, False) for b in (True, False)]


@pytest.mark.parametrize(("symptom", "first", "second"), ENDS)
def test_every_end_is_a_page_of_the_book_with_a_number_to_look_at(symptom, first, second):
    end = leaf(symptom, first, second)
    assert (ROOT / "chapters" / f"{end.page}.ipynb").is_file()
    assert end.technique and end.look_at


def test_the_picture_calls_each_page_by_its_title():
    assert set(TITLES) == {leaf(*end).page for end in ENDS}
    for page, title in TITLES.items():
        notebook = json.loads((ROOT / "chapters" / f"{page}.ipynb").read_text("utf-8"))
        first = re.search("^# (.*)", "".join(notebook["cells"][0]["source"]), re.MULTILINE)
        assert first and first[1] == title


@pytest.mark.parametrize("symptom", TREES)
def test_each_question_is_asked_once_and_changes_where_one_ends(symptom):
    tree = TREES[symptom]
    questions = [tree.question, tree.yes.question, tree.no.question]
    assert len(set(questions)) == 3 and all(q.endswith("?") for q in questions)
    ends = [leaf(symptom, a, b) for a in (True, False) for b in (True, False)]
    assert len(set(ends)) >= 3


def test_blocks_on_demand_are_explained_where_their_gain_is_counted():
    assert leaf("few", True, True).page == "03_paged/capacity"


LOSSY = {
    f"04_engines/{page}" for page in ("smaller_by_precision", "lossy_eviction", "reading_less")
}


@pytest.mark.parametrize("symptom", TREES)
def test_who_may_not_change_the_logits_is_sent_nowhere_lossy(symptom):
    tree, mark = TREES[symptom], "logits change"
    if mark in tree.question:
        assert not {tree.no.yes.page, tree.no.no.page} & LOSSY
        assert {tree.yes.yes.page, tree.yes.no.page} <= LOSSY
    for fork in (tree.yes, tree.no):
        if mark in fork.question:
            assert fork.no.page not in LOSSY and fork.yes.page in LOSSY


@pytest.mark.parametrize(
    ("symptom", "first", "second", "technique"),
    [
        ("long", True, True, "store it in 8 bits"),
        ("long", False, True, "split heads over cards"),
        ("few", True, True, "blocks on demand"),
        ("few", False, True, "raise the limit on requests"),
        ("few", False, False, "another admission rule"),
        ("few", True, False, "fewer bits, or a card: plan both"),
        ("first", True, True, "put what is shared first"),
        ("first", True, False, "more servers, or less load"),
        ("first", False, True, "larger chunks"),
        ("first", False, False, "more cards for a prompt"),
        ("slow", False, True, "prompts in chunks"),
        ("slow", False, False, "not the cache: profile it"),
        ("twice", True, True, "another admission rule"),
        ("twice", False, True, "a small watermark"),
        ("twice", False, False, "a second tier behind the index"),
        ("again", True, True, "a second tier behind the index"),
        ("again", True, False, "nothing: compute it again"),
        ("again", False, True, "send it where it was"),
        ("again", False, False, "the order, then the salts"),
    ],
)
def test_answers_lead_where_they_should(symptom, first, second, technique):
    assert leaf(symptom, first, second).technique == technique


@pytest.mark.parametrize(("symptom", "first", "second"), ENDS)
def test_the_picture_marks_the_end_that_the_answers_lead_to(symptom, first, second):
    svg = find("decision_tree").draw(symptom=symptom, first=first, second=second)
    end = leaf(symptom, first, second)
    assert f">Try: {end.technique}<" in svg and f">Look at: {end.look_at}<" in svg
    assert svg.count('fill="var(--kv-used') == 1  # one end is marked
