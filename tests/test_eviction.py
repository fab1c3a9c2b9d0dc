"""Eviction policies against slow and obvious models: the order, the pins, the errors, O(1)."""

import sys
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvlib.eviction import FIFOPolicy, LFUPolicy, LRUPolicy
from kvlib.frequency import UseCounts
from kvlib.plan import OutOfBlocks
from kvlib.replay import BeladyPolicy

POLICIES = [FIFOPolicy, LRUPolicy, LFUPolicy]
KEYS = st.sampled_from("abcdef")


class Obvious:
    """Every key in one list of [key, pins, uses, moment it last joined or was used]."""

    def __init__(self, kind):
        self.kind = kind
        self.rows = {}
        self.clock = 0

    def tick(self):
        self.clock += 1
        return self.clock

    def victim(self):
        free = {key: row for key, row in self.rows.items() if not row["pins"]}
        rank = {
            FIFOPolicy: lambda row: row["joined"],
            LRUPolicy: lambda row: max(row["joined"], row["used"]),
            LFUPolicy: lambda row: (row["uses"], max(row["joined"], row["used"])),
        }[self.kind]
        return min(free, key=lambda key: rank(free[key]), default=None)


def machine(kind):
    class PolicyMachine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.policy, self.model = kind(), Obvious(kind)

        def refused(self, error, call, *args):
            held = {key: key in self.policy for key in "abcdef"}
            with pytest.raises(error):
                call(*args)
            assert held == {key: key in self.policy for key in "abcdef"}

        @rule(key=KEYS)
        def add(self, key):
            if key in self.model.rows:
                return self.refused(ValueError, self.policy.add, key)
            self.policy.add(key)
            self.model.rows[key] = dict(pins=0, uses=1, joined=self.model.tick(), used=0)

        @rule(key=KEYS)
        def touch(self, key):
            if key not in self.model.rows:
                return self.refused(ValueError, self.policy.touch, key)
            self.policy.touch(key)
            self.model.rows[key]["uses"] += 1
            self.model.rows[key]["used"] = self.model.tick()

        @rule()
        def evict(self):
            victim = self.model.victim()
            if victim is None:
                return self.refused(OutOfBlocks, self.policy.evict)
            assert self.policy.evict() == victim
            del self.model.rows[victim]

        @rule(key=KEYS)
        def remove(self, key):
            if self.model.rows.get(key, {"pins": 1})["pins"]:
                return self.refused(ValueError, self.policy.remove, key)
            self.policy.remove(key)
            del self.model.rows[key]

        @rule(key=KEYS)
        def pin(self, key):
            if key not in self.model.rows:
                return self.refused(ValueError, self.policy.pin, key)
            self.policy.pin(key)
            self.model.rows[key]["pins"] += 1

        @rule(key=KEYS)
        def unpin(self, key):
            row = self.model.rows.get(key, {"pins": 0})
            if not row["pins"]:
                return self.refused(ValueError, self.policy.unpin, key)
            self.policy.unpin(key)
            row["pins"] -= 1
            if not row["pins"]:
                row["joined"] = self.model.tick()

        def teardown(self):
            while (victim := self.model.victim()) is not None:
                assert self.policy.evict() == victim
                del self.model.rows[victim]
            self.refused(OutOfBlocks, self.policy.evict)

        @invariant()
        def both_hold_the_same(self):
            self.policy.check()
            assert {key for key in "abcdef" if key in self.policy} == set(self.model.rows)
            assert len(self.policy) == len(self.model.rows)
            free = [row for row in self.model.rows.values() if not row["pins"]]
            assert self.policy.num_evictable == len(free)

    PolicyMachine.TestCase.__name__ = f"{kind.__name__}Machine"
    return PolicyMachine.TestCase


TestFIFO, TestLRU, TestLFU = map(machine, POLICIES)


def filled(kind, keys="abc"):
    policy = kind(keys) if kind is BeladyPolicy else kind()
    for key in keys:
        policy.add(key)
    return policy


@pytest.mark.parametrize(
    ("kind", "order"), [(FIFOPolicy, "abcd"), (LRUPolicy, "cdba"), (LFUPolicy, "cdba")]
)
def test_what_a_use_is_worth(kind, order):
    policy = filled(kind, "abcd")
    for key in "aba":
        policy.touch(key)
    assert "".join(policy.evict() for _ in order) == order


def test_lru_forgets_how_often_and_lfu_how_recently():
    """a is used a hundred times, then b, c and d once each."""
    lru, lfu = (filled(kind, "abcd") for kind in (LRUPolicy, LFUPolicy))
    for policy in (lru, lfu):
        for key in "a" * 100 + "bcd":
            policy.touch(key)
    assert (lru.evict(), lfu.evict()) == ("a", "b")


def test_a_key_that_comes_back_starts_from_one_use():
    policy = filled(LFUPolicy, "ab")
    for key in "bba":
        policy.touch(key)
    policy.remove("b")
    policy.add("b")
    policy.check()
    assert policy.evict() == "b"


@pytest.mark.parametrize("kind", [*POLICIES, BeladyPolicy])
def test_a_pinned_key_stays_until_its_last_pin_goes(kind):
    policy = filled(kind)
    for key in "aabc":
        policy.pin(key)
    policy.unpin("a")
    with pytest.raises(OutOfBlocks, match="asked to evict 1 key, 3 held, 3 of them pinned"):
        policy.evict()
    policy.unpin("a")
    assert policy.evict() == "a"
    assert len(policy) == 2 and "a" not in policy


@pytest.mark.parametrize("kind", POLICIES)
def test_a_use_does_not_unpin(kind):
    """Even though the pinned key is the one used least, and was used longest ago."""
    policy = filled(kind, "ab")
    policy.pin("a")
    for key in "abb":
        policy.touch(key)
    assert policy.evict() == "b"
    with pytest.raises(OutOfBlocks, match="1 held, 1 of them pinned"):
        policy.evict()


@pytest.mark.parametrize("kind", [*POLICIES, BeladyPolicy])
def test_an_empty_policy_has_nothing_to_give(kind):
    with pytest.raises(OutOfBlocks, match="asked to evict 1 key, 0 held, 0 of them pinned"):
        filled(kind, "").evict()


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(
    ("call", "key", "message"),
    [
        ("add", "a", "'a' is held already, among 3 keys"),
        ("touch", "x", "'x' is not held, among 3 keys"),
        ("remove", "x", "'x' is not held"),
        ("remove", "b", "only an unpinned key is removed, 'b' has 2 pins"),
        ("pin", "x", "'x' is not held"),
        ("unpin", "x", "'x' is not held"),
        ("unpin", "a", "'a' has no pin to take back"),
    ],
)
def test_an_error_says_what_there_was_and_changes_nothing(kind, call, key, message):
    policy = filled(kind)
    policy.pin("b")
    policy.pin("b")
    with pytest.raises(ValueError, match=message):
        getattr(policy, call)(key)
    policy.check()
    assert [policy.evict(), policy.evict()] == ["a", "c"]
    policy.unpin("b")
    policy.unpin("b")
    assert policy.evict() == "b"


@pytest.mark.parametrize("kind", [*POLICIES, BeladyPolicy])
def test_a_key_must_be_hashable(kind):
    policy = filled(kind)
    with pytest.raises((TypeError, ValueError)):
        policy.add([])
    assert len(policy) == 3
    policy.check()


def read(kind, chunks, budget, looks):
    """What a policy over token positions gives up while a text is read chunk by chunk.

    In each step the new tokens come in, then those that `looks` picks of the held ones are used.
    """
    policy, given_up, num_tokens = kind(), [], 0
    for chunk in chunks:
        for token in range(num_tokens, num_tokens + chunk):
            if len(policy) == budget:
                given_up.append(policy.evict())
            policy.add(token)
        num_tokens += chunk
        for token in looks([token for token in range(num_tokens) if token in policy]):
            policy.touch(token)
    return given_up


CHUNKS = st.lists(st.integers(1, 6), min_size=1, max_size=20)


@given(CHUNKS, st.integers(1, 10))
def test_lru_over_token_positions_is_fifo_under_dense_attention(chunks, budget):
    lru, fifo = (read(kind, chunks, budget, list) for kind in (LRUPolicy, FIFOPolicy))
    assert lru == fifo == list(range(max(0, sum(chunks) - budget)))


@given(st.integers(2, 10), st.integers(1, 30))
def test_lfu_over_token_positions_keeps_the_first_and_the_newest(budget, num_tokens):
    given_up = read(LFUPolicy, [1] * num_tokens, budget, list)
    assert given_up == list(range(budget - 1, num_tokens))[: max(0, num_tokens - budget)]


def test_lfu_gives_up_the_first_token_of_a_prompt_that_came_at_once():
    """Its tokens tie in uses, and among equals the least recent goes."""
    assert read(LFUPolicy, [4, 1, 1, 1, 1], 4, list) == [0, 4, 5, 6]


def test_under_sparse_attention_lru_is_not_fifo():
    """Every token looks at token 0 and at itself, and at nothing else."""
    lru, fifo = (
        read(kind, [1] * 6, 3, lambda held: [held[0], held[-1]]) for kind in (LRUPolicy, FIFOPolicy)
    )
    assert lru == [1, 2, 3] and fifo == [0, 1, 2]


def test_counts_without_a_key_on_offer_say_so():
    counts = UseCounts()
    with pytest.raises(ValueError, match="asked for 1 key, 0 known, 0 of them on offer"):
        counts.lowest()
    counts.show("a")
    counts.hide("a")
    with pytest.raises(ValueError, match="1 known, 0 of them on offer"):
        counts.lowest()


class Counted:
    """A key that counts how often it was compared or hashed."""

    calls: ClassVar[Counter] = Counter()

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        self.calls["hash"] += 1
        return hash(self.value)

    def __eq__(self, other):
        self.calls["eq"] += 1
        return self.value == other.value


def work(call, *args):
    """Python lines run in kvlib, hashes and comparisons of one call."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        lines += event == "line" and "kvlib" in frame.f_code.co_filename
        return trace

    Counted.calls.clear()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call(*args)
    finally:
        sys.settrace(before)
    return lines, Counted.calls["hash"], Counted.calls["eq"]


def costs(kind, num_keys):
    """Work of every call on a policy whose keys have been used and given up a few times before."""
    policy, keys = kind(), [Counted(i) for i in range(2 * num_keys)]
    for key in keys:
        policy.add(key)
    for key in keys[::3]:
        policy.touch(key)
    for _ in range(num_keys):
        policy.evict()
    held = [key for key in keys if key in policy]
    first, middle, last = held[0], held[len(held) // 2], held[-1]
    return {
        "touch": [work(policy.touch, Counted(k.value)) for k in (first, middle, last)],
        "pin": [work(policy.pin, k) for k in (first, middle, last)],
        "unpin": [work(policy.unpin, k) for k in (middle, first, last)],
        "evict": [work(policy.evict) for _ in range(3)],
        "add": [work(policy.add, Counted(10**6 + i)) for i in range(3)],
        "remove": [work(policy.remove, k) for k in (middle, last)],
    }


@pytest.mark.parametrize("kind", POLICIES)
def test_no_call_does_more_work_with_more_keys(kind):
    """Lines run, hashes and comparisons are counted; nothing is timed."""
    for num_keys in (10, 3000):
        for call, each in costs(kind, num_keys).items():
            lines, hashed, compared = map(max, zip(*each, strict=True))
            assert lines <= 40 and hashed <= 12 and compared <= 12, (call, num_keys, each)


def test_a_list_would_do_more_work_with_more_keys():
    """What the test above would see in the naive order of access."""
    for num_keys in (10, 3000):
        order = [Counted(i) for i in range(num_keys)]
        _, _, compared = work(order.remove, Counted(num_keys - 1))
        assert compared == num_keys
