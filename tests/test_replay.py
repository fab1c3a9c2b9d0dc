"""Replays: hits are counted, and no policy passes the one that knows what comes."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.eviction import FIFOPolicy, LFUPolicy, LRUPolicy
from kvlib.replay import BeladyPolicy, Replay, access_pattern, replay

POLICIES = [FIFOPolicy, LRUPolicy, LFUPolicy]
ACCESSES = st.lists(st.integers(0, 5), min_size=1, max_size=40).map(tuple)


def best_possible(accesses, capacity):
    """Most hits of any choice of victims: tries them all."""

    @cache
    def most(at, held):
        if at == len(accesses):
            return 0
        key = accesses[at]
        if key in held:
            return 1 + most(at + 1, held)
        if len(held) < capacity:
            return most(at + 1, held | {key})
        return max(most(at + 1, held - {gone} | {key}) for gone in held)

    return most(0, frozenset())


@given(st.lists(st.integers(0, 4), min_size=1, max_size=14).map(tuple), st.integers(1, 4))
def test_belady_is_the_best_there_is(accesses, capacity):
    found = replay(BeladyPolicy(accesses), accesses, capacity)
    assert found.hits == best_possible(accesses, capacity)


@given(ACCESSES, st.integers(1, 6))
def test_no_policy_passes_belady(accesses, capacity):
    bound = replay(BeladyPolicy(accesses), accesses, capacity).hits
    for kind in POLICIES:
        found = replay(kind(), accesses, capacity)
        assert found.hits <= bound
        assert found.hits + found.misses == len(accesses)
        assert len(found.evicted) == found.misses - min(capacity, found.misses)


@given(ACCESSES, st.integers(1, 6))
def test_lru_holds_the_last_distinct_keys(accesses, capacity):
    """Counted without a cache: a hit is an access with fewer than `capacity` other keys between."""
    hits = 0
    for at, key in enumerate(accesses):
        before = accesses[:at]
        if key in before:
            last = at - 1 - before[::-1].index(key)
            hits += len(set(before[last:])) <= capacity
    assert replay(LRUPolicy(), accesses, capacity).hits == hits


@given(ACCESSES, st.integers(1, 5))
def test_more_room_never_costs_lru_a_hit(accesses, capacity):
    less, more = (replay(LRUPolicy(), accesses, c).hits for c in (capacity, capacity + 1))
    assert less <= more


def test_more_room_can_cost_fifo_a_hit():
    """Belady's anomaly: 9 misses with three places, 10 with four."""
    accesses = (1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5)
    assert [replay(FIFOPolicy(), accesses, c).misses for c in (3, 4)] == [9, 10]


@pytest.mark.parametrize("kind", [FIFOPolicy, LRUPolicy])
@pytest.mark.parametrize("num_keys", [101, 150, 400])
def test_a_scan_longer_than_the_cache_never_hits(kind, num_keys):
    accesses = access_pattern("sequential", num_keys, 2000)
    assert replay(kind(), accesses, capacity=100).hits == 0
    assert replay(BeladyPolicy(accesses), accesses, capacity=100).hit_rate > 0.1


def test_a_hit_rate_is_a_share_of_all_accesses():
    assert Replay(3, 1, ()).hit_rate == 0.75
    assert replay(LRUPolicy(), "aaab", 1) == Replay(2, 2, ("a",))
    with pytest.raises(AttributeError):
        Replay(3, 1, ()).hits = 4


@pytest.mark.parametrize("capacity", [0, -1, 2.0, True])
def test_a_cache_that_holds_nothing_is_refused(capacity):
    policy = LRUPolicy()
    with pytest.raises((TypeError, ValueError), match="capacity must be"):
        replay(policy, "ab", capacity)
    assert len(policy) == 0


def test_a_replay_starts_with_an_empty_policy_and_some_access():
    policy = LRUPolicy()
    with pytest.raises(ValueError, match="at least 1 access, got 0"):
        replay(policy, (), 1)
    policy.add("a")
    with pytest.raises(ValueError, match="empty policy, this one holds 1 keys"):
        replay(policy, "ab", 1)
    assert "a" in policy and "b" not in policy


def test_belady_is_held_to_what_was_announced():
    policy = BeladyPolicy("aba")
    policy.add("a")
    with pytest.raises(ValueError, match="announced as 'b', got 'a'"):
        policy.touch("a")
    policy.add("b")
    with pytest.raises(ValueError, match="announced as 'a', got 'b'"):
        policy.add("b")
    policy.touch("a")
    with pytest.raises(ValueError, match="announced as the end after 3 accesses, got 'c'"):
        policy.add("c")
    policy.check()
    assert len(policy) == 2


def test_belady_refuses_what_others_refuse_and_its_clock_stands_still():
    policy = BeladyPolicy("aa")
    with pytest.raises(ValueError, match="not held"):
        policy.touch("a")
    policy.add("a")
    with pytest.raises(ValueError, match="held already"):
        policy.add("a")
    policy.touch("a")


@pytest.mark.parametrize("name", ["random", "temporal-locality"])
def test_patterns_are_drawn_from_their_seed(name):
    made = access_pattern(name, 50, 2000, seed=1)
    assert made == access_pattern(name, 50, 2000, seed=1) != access_pattern(name, 50, 2000, seed=2)
    assert len(made) == 2000 and set(made) == set(range(50))


def test_a_pattern_is_the_same_on_every_machine():
    """Of a thousand keys five are met in 40 accesses; a repeat is one of the 16 before."""
    assert access_pattern("random", 1000, 6, seed=1) == (134, 847, 763, 255, 495, 449)
    made = access_pattern("temporal-locality", 1000, 40, seed=1)
    assert made[:10] == (134, 763, 134, 763, 134, 134, 134, 763, 763, 901)
    assert made[-10:] == (763, 120, 120, 134, 120, 120, 134, 134, 134, 120)
    assert access_pattern("random", 1000, 6) != access_pattern("random", 1000, 6, seed=1)
    assert access_pattern("random", 1000, 6) == access_pattern("random", 1000, 6, seed=0)


def test_a_random_access_hits_as_often_as_the_cache_is_large():
    """Whatever the policy: none of them can see a random future."""
    accesses = access_pattern("random", 200, 20_000, seed=3)
    for kind in POLICIES:
        assert abs(replay(kind(), accesses, 100).hit_rate - 0.5) < 0.03


def test_only_locality_rewards_recency():
    accesses = access_pattern("temporal-locality", 200, 20_000, seed=3)
    assert replay(LRUPolicy(), accesses, 20).hit_rate > 0.75
    flat = access_pattern("random", 200, 20_000, seed=3)
    assert replay(LRUPolicy(), flat, 20).hit_rate < 0.15


def test_a_pattern_nobody_knows_lists_those_that_exist():
    with pytest.raises(ValueError, match="known: sequential, random, temporal-locality"):
        access_pattern("temporal", 5, 5)
    for sizes in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            access_pattern("random", *sizes)
