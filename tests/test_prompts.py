"""Templates, made-up turns and what a cache finds: by hand, and against the library's replay."""

import hashlib
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.catalog import gpu, model
from kvlib.prefix import HashIndex
from kvlib.prefix_replay import replay_prefix
from kvlib.prompts import PARTS, STAMPS, Ask, Template, asks, bill, found_tokens
from kvlib.request import Request
from kvlib.transfer import Prefill

SHARED = ("system", "tools", "user", "history", "documents", "date", "question")
LOOKED_UP = ("system", "tools", "documents", "user", "history", "date", "question")


def request(prompt):
    return Request(0, 0.0, len(prompt), 1, token_ids=(*prompt, 99))


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


@pytest.mark.parametrize(("tokens", "found"), [(16, 0), (17, 16), (32, 16), (33, 32)])
def test_of_a_prompt_known_word_for_word_the_last_token_is_computed(tokens, found):
    prompt = range(tokens)
    assert found_tokens([request(prompt)] * 2) == [0, found]


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1), st.integers(1, 3))
def test_found_is_the_longest_start_in_whole_blocks_that_came_before(prompts, size):
    expected, before = [], []
    for prompt in prompts:
        best = 0
        for n in range(size, len(prompt), size):
            if any(other[:n] == prompt[:n] for other in before):
                best = n
        expected.append(best)
        before.append(prompt)
    assert found_tokens(map(request, prompts), size) == expected


@pytest.mark.parametrize("order", [PARTS, SHARED, LOOKED_UP])
def test_an_index_with_room_for_all_finds_as_much(order):
    requests = Template(order).requests(asks(0))
    replayed = replay_prefix(requests, 20_000, index=HashIndex, block_size=16)
    assert sum(found_tokens(requests)) == replayed.hit_tokens


def test_a_bill_adds_up():
    turns, prefill = asks(0), Prefill(gpu("A10"), model("Llama-3-8B"))
    made = bill(Template(SHARED), turns, prefill)
    counts = found_tokens(Template(SHARED).requests(turns))
    prompts = [r.prompt_tokens for r in Template(SHARED).requests(turns)]
    assert list(made.by_part) == list(SHARED)
    assert (made.prompt_tokens, made.found_tokens) == (sum(prompts), sum(counts))
    assert made.computed_tokens == sum(prompts) - sum(counts)
    assert made.prefix_hit_rate == sum(counts) / sum(prompts)
    pairs = zip(prompts, counts, strict=True)
    assert made.seconds == pytest.approx(sum(prefill(n - found, found) for n, found in pairs))
    assert all(0 <= found <= tokens for tokens, found in made.by_part.values())


def test_the_found_tokens_go_to_the_parts_they_stand_in():
    """Blocks of 1: of the second prompt everything up to the history is found, and no more."""
    turns = [ask(), ask(history=(60, 61))]
    made = bill(Template(LOOKED_UP), turns, lambda new, cached: float(new), block_size=1)
    found = {"system": 1, "tools": 1, "documents": 4, "user": 1}
    assert {name: pair[1] for name, pair in made.by_part.items() if pair[1]} == found
    assert made.by_part["history"] == (3, 0)
    assert made.seconds == 10 + 4


@pytest.mark.parametrize("seed", range(4))
def test_a_date_costs_the_more_the_earlier_it_stands(seed):
    turns, rates = asks(seed, num_users=12), []
    for place in range(len(SHARED) - 1):
        order = [part for part in SHARED if part != "date"]
        order.insert(place, "date")
        rates.append(sum(found_tokens(Template(tuple(order)).requests(turns))))
    assert rates == sorted(rates)
    assert rates[0] < 0.1 * rates[-1]  # two may come in one second
    assert rates[1] < 0.8 * rates[-1]


def test_a_date_of_the_minute_costs_once_a_minute():
    front = ("date", *(part for part in SHARED if part != "date"))
    for gap_s, least in ((0.5, 0.5), (60, 0)):
        turns = asks(0, gap_s=gap_s)
        counts = found_tokens(Template(front, "minute").requests(turns))
        minutes = len({t.arrival_s // 60 for t in turns})
        assert counts.count(0) == minutes
        assert sum(counts) / sum(r.prompt_tokens for r in Template(front).requests(turns)) >= least


@pytest.mark.parametrize("seed", range(3))
def test_no_order_is_best_for_all_conversations(seed):
    def found(order, turns):
        return sum(found_tokens(Template(order, sorted_documents=True).requests(turns)))

    short, long = asks(seed, 24, 4), asks(seed, 8, 12)
    assert found(LOOKED_UP, short) > 1.1 * found(SHARED, short)
    assert found(SHARED, long) > 1.1 * found(LOOKED_UP, long)


@pytest.mark.parametrize(("users", "turns", "best"), [(48, 1, LOOKED_UP), (4, 12, SHARED)])
def test_of_all_orders_behind_the_tools_nearly_the_best(users, turns, best):
    """One turn a user: documents first, which users share. Many turns: first what a user keeps."""
    made = asks(0, users, turns)
    found = {
        order: sum(found_tokens(Template(("system", "tools", *order, "question")).requests(made)))
        for order in permutations(best[2:-1])
    }
    assert found[best[2:-1]] > 0.99 * max(found.values()) > 1.2 * min(found.values())


def test_the_most_popular_of_twelve_documents_comes_first_29_percent_of_the_time():
    shares = []
    for seed in range(5):
        first = Counter(turn.documents[0] for turn in asks(seed, num_users=200))
        assert len(first) == 12
        shares.append(max(first.values()) / 800)
    assert 0.26 < sum(shares) / 5 < 0.32  # the root of a twelfth
