"""Templates and made-up turns, by hand."""

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.prompts import PARTS, STAMPS, Ask, Template, asks


def ask(**parts):
    """A turn of one token a part; what is given replaces it."""
    known = {name: (i,) for i, name in enumerate(PARTS) if name != "documents"} | parts
    return Ask(0.0, 0, 0, known, ((50, 51), (40, 41)), (7,))


@pytest.mark.parametrize("order", [PARTS[1:], (*PARTS, "date"), (*PARTS[1:], "time")])
def test_a_template_has_every_part_once(order):
    with pytest.raises(ValueError, match="a prompt has each of"):
        Template(order)


@given(st.permutations(PARTS))
def test_a_prompt_is_its_parts_in_order_and_then_the_answer(order):
    made = Template(tuple(order)).request(3, ask())
    tokens = {name: (i,) for i, name in enumerate(PARTS)} | {"documents": (50, 51, 40, 41)}
    prompt = [token for name in order for token in tokens[name]]
    assert made.token_ids == (*prompt, 7)
    assert (made.request_id, made.prompt_tokens, made.output_tokens) == (3, len(prompt), 1)


def test_sorted_documents_stand_alike_whatever_their_relevance():
    one, other = ask(), ask()
    object.__setattr__(other, "documents", one.documents[::-1])
    plain, in_order = Template(), Template(sorted_documents=True)
    assert plain.request(0, one).token_ids != plain.request(0, other).token_ids
    assert in_order.request(0, one).token_ids == in_order.request(0, other).token_ids
    assert sorted(plain.request(0, one).token_ids) == sorted(in_order.request(0, one).token_ids)


def test_a_date_that_says_less_is_the_beginning_of_one_that_says_more():
    turns = asks(0, gap_s=1.2)

    def dates(stamp):
        made = (Template(stamp=stamp).request(0, t).token_ids[: STAMPS[stamp]] for t in turns)
        return list(made)

    day, minute, second = map(dates, STAMPS)
    assert [date[:8] for date in minute] == day and [date[:10] for date in second] == minute
    assert len(set(day)) == 1
    assert len(set(minute)) == len({t.arrival_s // 60 for t in turns})
    assert len(set(second)) == len({int(t.arrival_s) for t in turns})
    assert 1 < len(set(minute)) < len(set(second)) < len(turns)
    lengths = [Template(stamp=stamp).request(0, turns[0]).prompt_tokens for stamp in STAMPS]
    assert [n - lengths[0] for n in lengths] == [0, 2, 4]


def test_an_unknown_stamp_lists_what_there_is():
    with pytest.raises(ValueError, match=r"one of .*'day', 'minute', 'second'.*got 'year'"):
        Template(stamp="year")


@pytest.mark.parametrize("seed", range(3))
def test_a_history_holds_all_questions_and_answers_before_and_no_document(seed):
    turns, before = asks(seed, num_users=5, num_turns=4), {}
    for turn in turns:
        assert turn.parts["history"] == before.get(turn.user, ())
        assert turn.turn == sum(1 for t in turns[: turns.index(turn)] if t.user == turn.user)
        before[turn.user] = turn.parts["history"] + turn.parts["question"] + turn.answer
        assert len(set(turn.documents)) == 2
    assert len(turns) == 20 and {t.turn for t in turns} == set(range(4))
    times = [t.arrival_s for t in turns]
    assert times == sorted(times) and times[0] == 0
    for name in ("system", "tools"):
        assert len({t.parts[name] for t in turns}) == 1
    assert len({t.parts["user"] for t in turns}) == 5


def test_a_seed_makes_the_same_turns_and_another_makes_others():
    assert asks(1) == asks(1) != asks(2)
    first, second = (asks(0, gap_s=g)[-1].arrival_s for g in (8, 16))
    assert second == pytest.approx(2 * first, rel=1e-3)


def test_a_seed_makes_the_same_turns_on_every_host():
    made = [(t.arrival_s, t.user, *t.parts.items(), *t.documents, t.answer) for t in asks(0)]
    assert hashlib.sha256(repr(made).encode()).hexdigest()[:16] == "a31df17dbfc5ca6c"


@pytest.mark.parametrize("wrong", [{"num_users": 0}, {"num_turns": 0}, {"per_turn": 0}])
def test_counts_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        asks(0, **wrong)


def test_no_more_documents_than_there_are():
    with pytest.raises(ValueError, match="3 documents a turn of 2 that there are"):
        asks(0, num_documents=2, per_turn=3)


def test_the_most_popular_of_twelve_documents_comes_first_29_percent_of_the_time():
    shares = []
    for seed in range(5):
        first = Counter(turn.documents[0] for turn in asks(seed, num_users=200))
        assert len(first) == 12
        shares.append(max(first.values()) / 800)
    assert 0.26 < sum(shares) / 5 < 0.32  # the root of a twelfth
