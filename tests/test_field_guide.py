"""The decision tree leads to pages that are there, and the bounds bound."""

from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.field_guide import TREES, highest_rate, leaf, least_share, whole_gain
from kvlib.show.drawings import find

ROOT = Path(__file__).resolve().parents[1]
ENDS = [(s, a, b) for s in TREES for a in (True, False) for b in (True, False)]


@pytest.mark.parametrize(("symptom", "first", "second"), ENDS)
def test_every_end_is_a_page_of_the_book_with_a_number_to_look_at(symptom, first, second):
    end = leaf(symptom, first, second)
    assert (ROOT / "chapters" / f"{end.page}.ipynb").is_file()
    assert end.technique and end.look_at


@pytest.mark.parametrize("symptom", TREES)
def test_each_question_is_asked_once_and_changes_where_one_ends(symptom):
    tree = TREES[symptom]
    questions = [tree.question, tree.yes.question, tree.no.question]
    assert len(set(questions)) == 3 and all(q.endswith("?") for q in questions)
    ends = [leaf(symptom, a, b) for a in (True, False) for b in (True, False)]
    assert len(set(ends)) >= 3


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


PARTS = st.dictionaries(st.sampled_from("abc"), st.floats(0.01, 100), min_size=1)


@given(PARTS, st.floats(1, 1000))
def test_a_whole_gains_no_more_than_its_parts_and_no_more_than_is_left(parts, factor):
    gain = whole_gain(parts, {"a": factor} if "a" in parts else {})
    assert 1 - 1e-9 <= gain <= factor + 1e-9
    if "a" in parts and len(parts) > 1:
        share = parts["a"] / sum(parts.values())
        assert gain <= 1 / (1 - share) + 1e-6
        assert share >= least_share(max(1.0, gain)) - 1e-6


def test_what_is_gone_takes_nothing_and_what_is_slower_costs():
    assert whole_gain({"a": 1.0}, {"a": inf}) == inf
    assert whole_gain({"a": 1.0, "b": 1.0}, {"a": inf}) == 2
    assert whole_gain({"a": 1.0, "b": 1.0}, {"a": 0.5}) == pytest.approx(2 / 3)
    assert whole_gain({"a": 0.0, "b": 1.0}, {"a": 2.0, "b": 4.0}) == 4
    assert whole_gain({"a": 0.25, "b": 0.25}, {"a": 2.0}) == pytest.approx(4 / 3)
    assert least_share(1) == 0 and least_share(2) == 0.5


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: whole_gain({"a": 1.0}, {"b": 2.0}), KeyError, "not among the parts"),
        (lambda: whole_gain({"a": -1.0, "b": 2.0}, {}), ValueError, "at least 0"),
        (lambda: whole_gain({"a": 0.0}, {}), ValueError, "one of them more"),
        (lambda: whole_gain({}, {}), ValueError, "parts cost"),
        (lambda: whole_gain({"a": 1.0}, {"a": 0.0}), ValueError, "above 0"),
        (lambda: least_share(0.9), ValueError, "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize(
    ("most", "rate"), [(0.05, None), (0.1, 1), (0.3, 2), (0.49, 2), (2.0, 4), (0.2, 1)]
)
def test_the_highest_rate_is_the_last_before_a_latency_is_broken(most, rate):
    assert highest_rate([(4, 1.0), (1, 0.1), (3, 0.5), (2, 0.3)], most) == rate
