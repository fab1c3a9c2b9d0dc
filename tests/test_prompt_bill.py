"""What is found of prompts and what they cost: by hand, by an index, and in every order."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.catalog import gpu, model
from kvlib.hash_index import HashIndex
from kvlib.prefill_time import Prefill
from kvlib.prefix_replay import replay_prefix
from kvlib.prompt_bill import bill, found_tokens
from kvlib.prompts import PARTS, Ask, Template, asks
from kvlib.request import Request

SHARED = ("system", "tools", "user", "history", "documents", "date", "question")
LOOKED_UP = ("system", "tools", "documents", "user", "history", "date", "question")


def request(prompt):
    return Request(0, 0.0, len(prompt), 1, token_ids=(*prompt, 99))


def ask(**parts):
    """A turn of one token a part; what is given replaces it."""
    known = {name: (i,) for i, name in enumerate(PARTS) if name != "documents"} | parts
    return Ask(0.0, 0, 0, known, ((50, 51), (40, 41)), (7,))


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
