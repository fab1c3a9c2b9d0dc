"""Priorities that end: when, for whom, and what is remembered of them meanwhile."""

from math import inf

import pytest

from kvlib.priority import PriorityPolicy, Retain


class Clock:
    """A clock that stands still."""

    now = 0.0

    def __call__(self):
        return self.now


def policy_of(rows, clock=None):
    """A policy with keys on show, each of a priority and its seconds, and its clock."""
    clock = clock or Clock()
    made = PriorityPolicy(lambda _, i: Retain(*[*rows.values()][i]), clock)
    for i, key in enumerate(rows):
        made.add(key, None, i)
        made.show(key)
    return made, clock


def given_up(policy):
    """All keys, the first to go first."""
    keys = []
    while (key := policy.lowest()) is not None:
        policy.check()
        keys.append(key)
        policy.forget(key)
    return "".join(keys)


def test_what_is_kept_if_nobody_says():
    assert Retain() == (35, inf)


def test_the_lowest_priority_goes_first_and_of_equals_what_was_used_longest_ago():
    policy, _ = policy_of({"a": (50,), "b": (35,), "c": (50,), "d": (0,), "e": (100,), "f": ()})
    policy.use("b")
    policy.use("a")
    assert given_up(policy) == "dfbcae"


def test_a_policy_is_asked_for_the_content_and_its_place():
    asked = []

    def retain(content, index):
        asked.append((content, index))
        return Retain()

    policy = PriorityPolicy(retain, Clock())
    policy.add("a")
    policy.add("b", "text", 7)
    assert asked == [(None, 0), ("text", 7)]


@pytest.mark.parametrize("priority", [-1, 101, -0.5, 100.5])
def test_a_priority_is_from_0_to_100_and_a_refusal_changes_nothing(priority):
    said = [0]
    policy = PriorityPolicy(lambda content, index: Retain(said[0]), Clock())
    for key, said[0] in zip("abcd", (0, 100, 1, 99), strict=True):
        policy.add(key)
        policy.show(key)
    said[0] = priority
    with pytest.raises(ValueError, match="priorities are 0 to 100, got"):
        policy.add("e")
    said[0] = 35
    with pytest.raises(ValueError, match="'a' is known already"):
        policy.add("a")
    assert given_up(policy) == "acdb"


@pytest.mark.parametrize(
    ("used", "now", "order"),
    [
        ([], 1000.0, "bca"),  # a priority lasts from a use, and there was none
        ([3.0], 12.99, "bca"),
        ([3.0], 13.0, "bac"),
        ([3.0, 8.0], 13.0, "bca"),
        ([3.0, 8.0], 17.99, "bca"),
        ([3.0, 8.0], 18.0, "bac"),
    ],
)
def test_a_priority_ends_its_seconds_after_the_last_use(used, now, order):
    """Then a has the default of 35, as b and c, of which it was used after the one alone."""
    policy, clock = policy_of({"b": (35,), "a": (80, 10.0), "c": (35,)})
    for clock.now in used:
        policy.use("a")
    policy.use("c")
    clock.now = now
    policy.check()
    assert given_up(policy) == order


def test_a_priority_that_has_ended_does_not_come_back():
    policy, clock = policy_of({"a": (80, 10.0), "b": (36,)})
    policy.use("a")
    clock.now = 10.0
    assert policy.lowest() == "a"
    policy.use("a")
    assert policy.lowest() == "a"
    policy.check()


def test_the_priority_of_a_key_in_use_ends_too_and_it_stays_hidden():
    policy, clock = policy_of({"a": (80, 10.0), "b": (36,)})
    policy.use("a")
    policy.hide("a")
    clock.now = 10.0
    assert policy.lowest() == "b" and policy.shown == {"b"}
    policy.show("a")
    assert given_up(policy) == "ab"


def test_the_end_of_a_key_that_was_forgotten_ends_nothing():
    policy, clock = policy_of({"a": (80, 10.0), "b": (36,)})
    policy.use("a")
    policy.forget("a")
    policy.add("a", None, 0)
    policy.show("a")
    clock.now = 5.0
    policy.use("a")
    clock.now = 10.0
    assert policy.lowest() == "b"
    clock.now = 15.0
    assert policy.lowest() == "a"
    policy.add("c", None, 0)
    policy.use("c")
    for key in "ac":
        policy.forget(key)
    clock.now = 99.0
    assert policy.lowest() == "b"


def test_a_copy_inherits_the_end():
    policy, clock = policy_of({"a": (80, 10.0), "b": (36,), "c": (80,)})
    policy.use("a")
    policy.copy("d", "a")
    policy.copy("e", "c")
    policy.show("d")
    policy.show("e")
    policy.check()
    assert len(policy._ends) == 2  # those of a and d; e has none, as c
    clock.now = 9.99
    assert policy.lowest() == "b"
    clock.now = 10.0
    assert given_up(policy) == "adbce"


def test_what_is_remembered_of_ends_is_cleared_away():
    """Of ten keys that end and one that does not: at most 64 ends and four for each key."""
    rows = {key: (80, 10.0) for key in "abcdefghij"}
    policy, clock = policy_of(rows | {"k": (80,)})
    lengths = []
    for clock.now in range(1000):
        policy.use("jihgfedcba"[clock.now % 10])
        policy.use("k")
        policy.check()
        lengths.append(len(policy._ends))
    assert max(lengths) == 64 + 4 * 11
    assert min(lengths[200:]) == 10  # of k nothing, and of each other key its last use


def test_whatever_was_cleared_away_the_first_to_end_ends_first():
    """The order of uses is not the one in which the keys became known."""
    policy, clock = policy_of({key: (90 - i, 10.0) for i, key in enumerate("abcde")})
    length = 0
    while len(policy._ends) >= length:  # until old ends are cleared away
        length = len(policy._ends)
        policy.use("e")
    for clock.now, key in enumerate("dcb", start=1):
        policy.use(key)
    policy.use("a")
    length = 0
    while len(policy._ends) >= length:
        length = len(policy._ends)
        policy.use("a")
    policy.check()
    clock.now = 11.0
    assert [policy.lowest(), len(policy._ends)] == ["e", 3]
    clock.now = 13.0
    assert given_up(policy) == "edcba"


def test_a_check_finds_an_end_that_is_missing_and_a_key_that_is_never_offered():
    policy, _ = policy_of({"a": (80, 10.0), "b": (80, 10.0), "c": ()})
    policy.check()
    policy.use("a")
    policy.use("b")
    policy.check()
    ends = [*policy._ends]
    policy._ends.pop()
    with pytest.raises(AssertionError, match="1 priorities would never end"):
        policy.check()
    policy._ends[:] = ends
    policy._heap.clear()
    with pytest.raises(AssertionError, match="a key is never offered"):
        policy.check()


def test_of_a_priority_without_an_end_nothing_is_remembered():
    policy, _ = policy_of({"a": (80,)})
    policy.use("a")
    policy.check()
    assert not policy._ends
