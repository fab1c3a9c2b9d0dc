"""Routers: each goes where it says, and says no in one line."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.router import LeastLoaded, PrefixAffinity, RoundRobin, TwoChoices

CAPS = st.floats(1, 10)
LOADS_AND_CACHED = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3)), min_size=1)


def instances(loads, cached=None):
    """Instances whose cache answers by request: `cached` holds a number for each instance."""
    cached = cached or [0] * len(loads)
    return [
        SimpleNamespace(load_tokens=load, cached_tokens=lambda request, n=n: n)
        for load, n in zip(loads, cached, strict=True)
    ]


def test_round_robin_takes_each_in_turn_and_goes_on_when_some_are_gone():
    router = RoundRobin()
    assert [router.choose(None, instances([9, 0, 0])) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert router.choose(None, instances([0, 0])) == 0
    assert router.choose(None, instances([0, 0])) == 1


@given(st.lists(st.integers(0, 5), min_size=1))
def test_least_loaded_is_the_first_of_the_least(loads):
    assert LeastLoaded().choose(None, instances(loads)) == loads.index(min(loads))


def test_two_choices_draw_every_pair_equally_often():
    """With loads 0 to 3 the less loaded is 0, 1, 2 in 3, 2 and 1 of the six pairs, never 3."""
    router = TwoChoices(seed=1)
    taken = Counter(router.choose(None, instances([0, 1, 2, 3])) for _ in range(6000))
    assert set(taken) == {0, 1, 2}
    for index, expected in ((0, 3000), (1, 2000), (2, 1000)):
        assert abs(taken[index] - expected) < 200  # more than 5 standard deviations


def test_two_choices_look_at_two_loads_only_and_prefer_the_lower_index():
    looked = []

    class Seen:
        def __init__(self, index):
            self.index = index

        @property
        def load_tokens(self):
            looked.append(self.index)
            return 7

    router = TwoChoices(seed=3)
    for _ in range(50):
        looked.clear()
        assert router.choose(None, [Seen(index) for index in range(9)]) == min(looked)
        assert len(looked) == len(set(looked)) == 2


def test_equal_seeds_choose_equally_and_others_do_not():
    def choices(seed):
        router = TwoChoices(seed)
        return [router.choose(None, instances(range(20))) for _ in range(50)]

    assert choices(1) == choices(1)
    assert choices(1) != choices(2)


@pytest.mark.parametrize("seed", range(20))
def test_of_one_instance_there_is_no_choice(seed):
    for router in (RoundRobin(), LeastLoaded(), TwoChoices(seed), PrefixAffinity(1)):
        assert router.choose(None, instances([5], [2])) == 0


def test_affinity_asks_for_the_prefix_of_this_request():
    held = {"mine": 64, "other": 0}
    here = SimpleNamespace(load_tokens=5, cached_tokens=lambda request: 16)
    there = SimpleNamespace(load_tokens=5, cached_tokens=held.get)
    assert PrefixAffinity(2).choose("mine", [here, there]) == 1
    assert PrefixAffinity(2).choose("other", [here, there]) == 0


@given(LOADS_AND_CACHED, CAPS)
def test_affinity_takes_most_cached_or_where_that_is_too_busy_the_least_loaded(pairs, cap):
    loads, cached = zip(*pairs, strict=True)
    index = PrefixAffinity(cap).choose(None, instances(loads, cached))
    most = [i for i, n in enumerate(cached) if n == max(cached)]
    best = min(most, key=lambda i: (loads[i], i))
    too_busy = loads[best] * len(loads) > cap * sum(loads)
    assert index == (loads.index(min(loads)) if too_busy else best)


@given(st.lists(st.integers(0, 100), min_size=1), CAPS)
def test_affinity_goes_by_load_where_nothing_is_cached(loads, cap):
    assert PrefixAffinity(cap).choose(None, instances(loads)) == loads.index(min(loads))


def test_a_load_of_just_the_cap_is_not_too_busy():
    loads, cached = [10, 100, 40], [0, 32, 16]
    assert PrefixAffinity(2).choose(None, instances(loads, cached)) == 1
    assert PrefixAffinity().load_cap == 1.5
    assert PrefixAffinity(1.99).choose(None, instances(loads, cached)) == 0
    assert PrefixAffinity(float("inf")).choose(None, instances([0, 900], [0, 1])) == 1


def test_affinity_herds_nobody_while_all_are_empty():
    assert PrefixAffinity(1).choose(None, instances([0, 0, 0], [0, 8, 8])) == 1


@pytest.mark.parametrize("router", [RoundRobin(), LeastLoaded(), TwoChoices(1), PrefixAffinity()])
def test_without_an_instance_nothing_is_chosen(router):
    with pytest.raises(ValueError, match="at least 1 instance, got 0"):
        router.choose(None, [])


@pytest.mark.parametrize("cap", [0.99, 0, -1, float("nan")])
def test_a_cap_below_one_is_refused(cap):
    with pytest.raises(ValueError, match=f"load_cap is at least 1, got {cap}"):
        PrefixAffinity(cap)


def test_a_refused_choice_leaves_the_turn_and_the_draws_as_they_were():
    for make in (RoundRobin, lambda: TwoChoices(4)):
        refused, plain = make(), make()
        with pytest.raises(ValueError):
            refused.choose(None, [])
        many = instances(range(9))
        assert [refused.choose(None, many) for _ in range(9)] == [
            plain.choose(None, many) for _ in range(9)
        ]
