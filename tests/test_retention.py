"""Which content goes first: every policy against an obvious model, and the rules of its own."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import prefix_cases
from kvlib import retention
from kvlib.blocks import BlockPool
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.priority import PriorityPolicy, Retain
from kvlib.radix import RadixTree
from kvlib.retention import (
    DropAll,
    RankedFIFO,
    RankedLFU,
    RankedLRU,
    RankedPolicy,
    SLRUPolicy,
    Use,
)
from prefix_cases import Sequence

KINDS = [RankedLRU, RankedFIFO, RankedLFU, SLRUPolicy, DropAll]
INDEXES = Path(__file__).resolve().parents[1] / "measure/operation_indexes.py"
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "use", "show", "hide", "forget"]), st.sampled_from("abcd")),
    max_size=60,
)


def test_every_policy_is_tried_here_on_every_index_and_by_random_operations():
    there = {
        each
        for each in vars(retention).values()
        if isinstance(each, type) and issubclass(each, RankedPolicy) and each is not RankedPolicy
    }
    tried, drawn = set(prefix_cases.POLICIES.values()), INDEXES.read_text(encoding="utf-8")
    missing = {each.__name__ for each in there if f"{each.__name__}(" not in drawn}
    assert there <= set(KINDS), "KINDS here, with its order beside it"
    assert there <= tried, "POLICIES of prefix_cases.py"
    assert not missing, "POLICIES of measure/operation_indexes.py"


@pytest.mark.parametrize("kind", KINDS)
@given(steps=STEPS)
def test_the_lowest_rank_goes_first(kind, steps):
    policy, rows, now = kind(), {}, 0
    order = {
        RankedFIFO: lambda row: row["added"],
        RankedLFU: lambda row: (row["uses"], row["used"]),
        SLRUPolicy: lambda row: (row["uses"] > 1, row["used"]),
    }.get(kind, lambda row: row["used"])
    for what, key in steps:
        if (what == "add") == (key in rows):
            continue
        getattr(policy, what)(key)
        now += 1
        row = rows.setdefault(key, dict(added=now, used=now, uses=0, shown=False))
        if what == "use":
            row.update(used=now, uses=row["uses"] + 1)
        elif what in ("show", "hide"):
            row["shown"] = what == "show"
        elif what == "forget":
            del rows[key]
        policy.check()
        shown = [key for key, row in rows.items() if row["shown"]]
        assert policy.lowest() == min(shown, key=lambda k: order(rows[k]), default=None)
        assert policy.shown == set(shown) and set(policy) == set(rows)


@pytest.mark.parametrize(
    "kind, order",
    [(RankedLRU, "cdeab"), (RankedFIFO, "abcde"), (RankedLFU, "cabed"), (SLRUPolicy, "cabde")],
)
def test_what_a_use_is_worth(kind, order):
    """Three uses of d, then two of e, then one of a and of b; c has none."""
    policy = kind()
    for key in "abcde":
        policy.add(key)
        policy.show(key)
    for key in "dddeeab":
        policy.use(key)
    given_up = []
    while policy.shown:
        given_up.append(policy.lowest())
        policy.forget(given_up[-1])
    assert "".join(given_up) == order


def test_a_key_is_added_once():
    policy = RankedLRU()
    policy.add("a")
    assert "a" in policy and "b" not in policy and len(policy) == 1
    with pytest.raises(ValueError, match="'a' is known already, among 1 keys"):
        policy.add("a")


def test_a_policy_has_a_rank():
    with pytest.raises(NotImplementedError):
        policy = RankedPolicy()
        policy.add("a")
        policy.show("a")


def test_a_rank_is_told_times_that_count_events():
    """Added, added, used, copied: four events; to show or to hide a key is none."""
    told = []

    class Told(RankedLRU):
        def rank(self, use):
            told.append(replace(use))
            return super().rank(use)

    policy = Told()
    policy.add("a")
    policy.add("b")
    policy.use("a")
    policy.show("b")
    policy.hide("b")
    policy.copy("c", "a")
    for key in "abc":
        policy.show(key)
    assert told[1:] == [Use(1, 3, 1, 0), Use(2, 2, 0, 0), Use(4, 3, 1, 0)]
    assert told[0] == Use(2, 2) and not hasattr(told[0], "__dict__")


def test_the_heap_does_not_grow_with_uses():
    policy = RankedLRU()
    for key in range(10):
        policy.add(key)
        policy.show(key)
    longest = 0
    for i in range(1_000):
        policy.use(i % 10)
        longest = max(longest, len(policy._heap))
        if len(policy._heap) == 10:  # old ranks were cleared away just now
            assert policy.lowest() == (i + 1) % 10
        policy.check()
    assert longest == 64 + 4 * 10 and policy.lowest() == 0


def test_an_inherited_key_has_the_same_rank_and_lives_on_its_own():
    policy = RankedLFU()
    policy.add("a")
    policy.use("a")
    policy.copy("b", "a")
    policy.add("c")
    for key in "abc":
        policy.show(key)
    policy.forget("c")
    policy.use("a")
    assert policy.lowest() == "b"


@pytest.mark.parametrize("index", [HashIndex, RadixTree])
def test_drop_all_drops_nothing_until_something_is_needed(index):
    pool = BlockPool(6)
    known = index(pool, DropAll())
    for token in range(4):
        Sequence(pool, known, [token]).stop()
    busy = Sequence(pool, known, [9])
    known.make_room(1)
    assert len(known) == 5
    known.make_room(2)
    assert len(known) == 1 and known.find(busy.content, 1) == busy.blocks


@pytest.mark.parametrize("index", [HashIndex, RadixTree])
@pytest.mark.parametrize(("margin", "kept"), [(0.0, 4), (0.25, 4), (0.5, 4), (0.51, 0), (0.9, 0)])
def test_drop_all_keeps_a_margin_empty(index, margin, kept):
    pool = BlockPool(8)
    known = index(pool, DropAll(margin))
    for token in range(4):
        Sequence(pool, known, [token]).stop()
    known.make_room(1)
    assert len(known) == pool.num_kept == kept


@pytest.mark.parametrize("index", [HashIndex, RadixTree])
def test_a_priority_outlasts_uses_until_its_time_ends(index):
    now = 0.0
    first = TokenContent([1], 1).key(0)
    policy = PriorityPolicy(
        lambda content, _: Retain(90, 10) if content.key(0) == first else Retain(), lambda: now
    )
    pool = BlockPool(3)
    known = index(pool, policy)
    for token in (1, 2, 3):
        Sequence(pool, known, [token]).stop()

    def left():
        return [t for t in (1, 2, 3) if known.find(TokenContent([t], 1), 1)]

    known.make_room(1)
    assert left() == [1, 3]
    now = 10.0
    known.make_room(2)
    assert left() == [3]
    known.check()


def test_a_use_starts_the_time_again():
    now = 0.0
    policy = PriorityPolicy(lambda _, i: Retain(90, 10) if i else Retain(), lambda: now)
    for i, key in enumerate("ab"):
        policy.add(key, None, i)
        policy.show(key)
        policy.use(key)
    now = 9.0
    policy.use("b")
    now = 12.0
    policy.use("a")
    assert policy.lowest() == "a"
    now = 19.0
    assert policy.lowest() == "b"
    policy.check()


def test_content_below_the_default_goes_before_any_other():
    policy = PriorityPolicy(lambda _, i: Retain(i), lambda: 0.0)
    for priority in (35, 0, 100):
        policy.add(priority, None, priority)
        policy.show(priority)
    assert policy.lowest() == 0


@pytest.mark.parametrize("priority", [-1, 101])
def test_a_priority_outside_the_scale_is_refused(priority):
    policy = PriorityPolicy(lambda _, i: Retain(priority), lambda: 0.0)
    with pytest.raises(ValueError, match="priorities are 0 to 100"):
        policy.add("a")
    assert "a" not in policy
