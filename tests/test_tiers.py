"""Tiers: their times, what a policy writes when, and that no block vanishes untold."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlib.eviction import FIFOPolicy, LFUPolicy, LRUPolicy
from kvlib.plan import OutOfBlocks
from kvlib.tier import Tier
from kvlib.tiers import POLICIES, Move, TierStack

NAN, INF = float("nan"), float("inf")


def stack(*capacities, policy="write_through", **how):
    """A stack whose blocks have one byte, so that a capacity is a number of blocks."""
    tiers = [Tier(f"tier {i}", n, 10.0**-i) for i, n in enumerate(capacities)]
    return TierStack(tiers, 1, policy=policy, **how)


def where(held):
    """For each tier the blocks it holds."""
    return [set(held.keys(i)) for i in range(len(held.tiers))]


def state(held):
    """All that a refused call must leave as it was."""
    lines = [list(books.order._line) for books in held._books]
    return where(held), lines, held.num_dropped, held.bytes_read[:], held.bytes_written[:]


@pytest.mark.parametrize("speed", [0, 0.0, -1, NAN, INF, -INF])
@pytest.mark.parametrize("name", ["read_gb_s", "write_gb_s"])
def test_a_speed_that_is_no_positive_number_is_refused(name, speed):
    with pytest.raises(ValueError, match=f"{name} of disk must be a number above 0, got"):
        Tier("disk", 10, **({"read_gb_s": 1} | {name: speed}))


@pytest.mark.parametrize("latency", [-1e-9, NAN, INF])
def test_a_latency_that_is_no_time_is_refused(latency):
    with pytest.raises(ValueError, match="latency_s of disk must be at least 0"):
        Tier("disk", 10, 1, latency_s=latency)


@pytest.mark.parametrize("capacity, error", [(0, ValueError), (-5, ValueError), (1.5, TypeError)])
def test_a_capacity_that_is_no_number_of_bytes_is_refused(capacity, error):
    with pytest.raises(error, match="capacity_bytes"):
        Tier("disk", capacity, 1)


def test_a_tier_that_holds_less_than_a_block_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="at least one block of 8 bytes, disk has 7"):
        TierStack([Tier("gpu", 8, 9), Tier("disk", 7, 1)], 8)
    assert TierStack([Tier("gpu", 8, 9), Tier("disk", 15, 1)], 8).capacity_blocks == (1, 1)


@pytest.mark.parametrize(
    "wrong", [{"policy": "write_around"}, {"min_uses": 0}, {"block_bytes": 0}, {"tiers": []}]
)
def test_a_stack_that_could_not_work_is_refused(wrong):
    right = {"tiers": [Tier("gpu", 8, 9)], "block_bytes": 8}
    with pytest.raises(ValueError):
        TierStack(**(right | wrong))


def test_a_transfer_takes_its_latency_and_its_bytes():
    tier = Tier("disk", 10**9, read_gb_s=2, write_gb_s=0.5, latency_s=0.25)
    assert tier.read_s(10**9) == 0.75
    assert tier.write_s(10**9) == 2.25
    assert Tier("disk", 1, 2).write_gb_s == 2


def test_tiers_alike_are_one():
    assert len({Tier("disk", 10, 1), Tier("disk", 10, 1), Tier("disk", 11, 1)}) == 2


def test_a_move_takes_the_time_of_the_lower_tier():
    held = stack(1, 1, 1)
    up, down = Move("a", 2, 1, 10**9), Move("a", 1, 2, 10**9)
    assert held.seconds(up) == held.tiers[2].read_s(10**9) == pytest.approx(100)
    assert held.seconds(down) == held.tiers[2].write_s(10**9)
    assert held.seconds(Move("a", None, 0, 9)) == held.seconds(Move("a", 1, None, 0)) == 0


def test_each_policy_writes_down_at_its_own_time():
    written = {}
    for policy in POLICIES:
        held = stack(2, 4, policy=policy)
        seen = [held.store("a"), held.store("a"), held.store("b"), held.store("c")]
        written[policy] = [[m for m in moves if m.target == 1] for moves in seen]
        held.check()
    a, b, c = (Move(key, 0, 1, 1) for key in "abc")
    assert written["write_through"] == [[a], [], [b], [c]]
    assert written["write_back"] == [[], [], [], [a]]
    assert written["selective"] == [[], [a], [], []]


def test_what_a_crash_of_the_first_tier_loses():
    """Write-through loses nothing, write-back all that is dirty, unless it was flushed."""
    left = {}
    for policy in ("write_through", "write_back"):
        for flushed in (False, True):
            held = stack(3, 9, policy=policy)
            for key in "abc":
                held.store(key)
            dirty = held.dirty
            if flushed:
                moves = held.flush()
                assert [m.key for m in moves] == dirty and not held.dirty
            for key in held.keys(0):
                held.lost(key, 0)
            held.check()
            left[policy, flushed] = len(held)
    assert list(left.values()) == [3, 3, 0, 3]


def test_a_smaller_tier_below_does_not_keep_the_promise_of_writing_through():
    held = stack(3, 1)
    for key in "abc":
        held.store(key)
    assert held.dirty == ["a", "b"] and held.keys(1) == ["c"]


def test_a_flush_takes_no_copy_from_a_block_that_was_safe():
    held = stack(2, 1, policy="selective")
    for key in "bba":
        held.store(key)
    assert held.flush() == [] and held.dirty == ["a"] and held.keys(1) == ["b"]
    held = stack(2, 1, policy="write_back")
    for key in "ab":
        held.store(key)
    assert held.flush() == [Move("a", 0, 1, 1)] and held.dirty == ["b"]
    held = stack(2, 2, policy="selective", eviction=FIFOPolicy)
    for key in "bb":
        held.store(key)
    held.pin("b")
    for key in "xxa":
        held.store(key)
    assert (held.dirty, held.keys(1)) == (["a"], ["b", "x"])  # and b is first in line
    assert held.flush() == [Move("x", 1, None, 0), Move("a", 0, 1, 1)]
    assert held.dirty == [] and held._books[1].order.num_evictable == 2
    held.check()


def test_a_flush_goes_down_one_tier_and_changes_no_order_of_uses():
    held = stack(2, 4, 4, policy="write_back")
    for key in "ab":
        held.store(key)
    assert held.flush() == [Move("a", 0, 1, 1), Move("b", 0, 1, 1)]
    held.store("a")  # used last, though it came first
    assert held.flush() == []
    assert held.store("c")[0] == Move("b", 0, None, 0)


def test_writing_through_copies_each_tier_from_the_one_above_it():
    held = stack(1, 1, 1)
    assert [tuple(move[1:3]) for move in held.store("a")] == [(None, 0), (0, 1), (1, 2)]
    assert held.bytes_read == [1, 1, 0] and held.bytes_written == [1, 1, 1]


def test_a_block_used_again_is_not_the_next_to_go():
    for again in ("store", "load"):
        held = stack(2, 4)
        held.store("a")
        held.store("b")
        getattr(held, again)("a")
        held.store("c")
        assert where(held) == [{"a", "c"}, {"a", "b", "c"}]


def test_two_pins_are_taken_back_one_at_a_time():
    held = stack(1, 4)
    held.store("a")
    held.pin("a")
    held.pin("a")
    held.unpin("a")
    held.check()
    with pytest.raises(OutOfBlocks):
        held.store("b")
    held.unpin("a")
    held.check()
    assert held.store("b")[0] == Move("a", 0, None, 0)


def test_loading_leaves_no_pin_behind():
    held = stack(1, 2, policy="write_back")
    held.store("a")
    held.store("b")
    held.load("a")
    with pytest.raises(ValueError, match="'a' has no pin"):
        held.unpin("a", 1)


def test_a_selective_stack_keeps_what_was_used_enough_but_found_no_room():
    """The tier below was full of pins when the second use came; it has room at the eviction."""
    held = stack(1, 1, policy="selective")
    for key in "xxx":
        held.store(key)
    held.pin("x", 1)
    for key in "aa":
        held.store(key)
    assert held.dirty == ["a"] and held.keys(1) == ["x"]
    held.unpin("x", 1)
    assert Move("a", 0, 1, 1) in held.store("b")
    assert held.keys(1) == ["a"]


def test_a_selective_stack_drops_what_was_used_once():
    held = stack(1, 4, policy="selective")
    held.store("a")
    assert held.store("b") == [Move("a", 0, None, 0), Move("b", None, 0, 1)]
    assert held.find("a") is None and held.num_dropped == 1
    held.store("b")
    assert held.find("b") == 0 and held.keys(1) == ["b"]


def test_a_block_comes_up_through_every_tier_and_stays_below():
    held = stack(1, 1, 3, policy="write_back")
    for key in "abc":
        held.store(key)
    assert where(held) == [{"c"}, {"b"}, {"a"}]
    moves = held.load("a")
    assert [m for m in moves if m.key == "a"] == [Move("a", 2, 1, 1), Move("a", 1, 0, 1)]
    assert where(held) == [{"a"}, {"a"}, {"a", "b", "c"}] and not held.num_dropped


def test_a_pinned_tier_in_between_is_passed_by():
    held = stack(1, 1, 3, policy="write_back")
    for key in "abc":
        held.store(key)
    held.pin("b", 1)
    assert held.load("a")[-1] == Move("a", 2, 0, 1)
    assert held.find("c") == 2
    held.check()


def test_writing_through_passes_a_pinned_tier_by_and_copies_from_where_the_block_is():
    held = stack(2, 1, 3)
    held.store("a")
    held.pin("a", 1)
    assert held.store("b") == [Move("b", None, 0, 1), Move("b", 0, 2, 1)]
    assert where(held) == [{"a", "b"}, {"a"}, {"a", "b"}]


def test_the_block_that_is_loaded_is_not_pushed_out_by_what_it_pushes_down():
    held = stack(1, 1, policy="write_back")
    held.store("a")
    held.store("b")
    assert held.load("a") == [Move("b", 0, None, 0), Move("a", 1, 0, 1)]
    assert (held.find("a"), held.find("b"), held.num_dropped) == (0, None, 1)


@pytest.mark.parametrize("call", ["store", "load"])
def test_where_all_above_is_pinned_nothing_changes(call):
    held = stack(1, 4, policy="write_back")
    held.store("a")
    held.store("b")
    held.pin("b")
    before = state(held)
    with pytest.raises(OutOfBlocks, match=r"asked for room for 1 block, 1 of tier 0 all pinned"):
        getattr(held, call)({"store": "c", "load": "a"}[call])
    assert state(held) == before
    held.unpin("b")
    getattr(held, call)({"store": "c", "load": "a"}[call])


@pytest.mark.parametrize(
    "call, error, says",
    [
        (lambda s: s.load("x"), LookupError, "only a held block is loaded, asked for 'x', 1 held"),
        (lambda s: s.lost("a", 1), ValueError, "tier 1 does not hold 'a', among 0 blocks"),
        (lambda s: s.pin("a", 1), ValueError, "tier 1 does not hold 'a'"),
        (lambda s: s.unpin("a"), ValueError, "'a' has no pin to take back"),
        (lambda s: s.unpin("a", 1), ValueError, "tier 1 does not hold 'a'"),
    ],
)
def test_a_wrong_call_says_what_was_asked_and_changes_nothing(call, error, says):
    held = stack(2, 4, policy="write_back")
    held.store("a")
    before = state(held)
    with pytest.raises(error, match=says):
        call(held)
    assert state(held) == before


def test_a_lost_copy_is_offered_from_elsewhere_or_not_at_all():
    held = stack(2, 4, 8)
    held.store("a")
    held.pin("a", 1)
    assert held.lost("a", 0) == 1
    assert held.lost("a", 1) == 2  # its pin goes with it
    assert held.load("a")[-1] == Move("a", 1, 0, 1)
    assert [held.lost("a", i) for i in range(3)] == [1, 2, None]
    assert held.find("a") is None and not len(held) and not held.num_dropped
    with pytest.raises(LookupError):
        held.load("a")
    assert held.store("a")[0] == Move("a", None, 0, 1)
    held.check()


def test_a_lower_tier_smaller_than_the_upper_is_written_for_nothing():
    """Churn: down it goes when stored, is pushed out, goes down again, and is never read."""
    small, large = stack(8, 4), stack(8, 16)
    for held in (small, large):
        for _ in range(3):
            for key in range(12):
                held.store(key) if held.find(key) is None else held.load(key)
    assert small.bytes_written[1] == 3 * 12 + 28 and small.bytes_read[1] == 0
    assert large.bytes_written[1] == 12 and large.bytes_read[1] > 0


@given(st.lists(st.integers(0, 12)), st.integers(1, 6), st.integers(0, 6))
def test_write_through_holds_what_one_lru_of_the_lowest_tiers_size_holds(keys, first, more):
    held, alone = stack(first, first + more), stack(first + more)
    for key in keys:
        found = [each.find(key) is not None for each in (held, alone)]
        assert found[0] == found[1]
        for each, hit in zip((held, alone), found, strict=True):
            each.load(key) if hit else each.store(key)
    assert where(held)[1] == where(alone)[0]


class Copies:
    """Carries moves out on a model of the bytes, and fails at the copies it is told to."""

    def __init__(self, capacities):
        self.capacities, self.tiers = capacities, [set() for _ in capacities]

    def carry_out(self, moves, held, broken=()):
        """Every copy is made in order from one that is there; a broken one is told as lost."""
        for i, (key, source, target, num_bytes) in enumerate(moves):
            if target is None:
                assert num_bytes == 0
                self.tiers[source].remove(key)
                continue
            assert source is None or key in self.tiers[source]
            assert key not in self.tiers[target]
            assert len(self.tiers[target]) < self.capacities[target]
            self.tiers[target].add(key)
            if i in broken:
                self.give_up(moves[i:], held, key, target)
                return

    def give_up(self, rest, held, key, target):
        """One copy came out torn: what was built on it is told as lost, the rest is done."""
        bad = {target}
        self.tiers[target].discard(key)
        for later in rest[1:]:
            if later.target is None:
                if later.source not in bad or later.key != key:
                    self.tiers[later.source].discard(later.key)
            elif later.key == key and later.source in bad:
                bad.add(later.target)
            else:
                self.tiers[later.target].add(later.key)
        for tier in bad:
            if key in held.keys(tier):
                held.lost(key, tier)


class TierMachine(RuleBasedStateMachine):
    """Stores, loads, pins, failing copies, crashes: the books and the bytes agree throughout."""

    @initialize(
        capacities=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        policy=st.sampled_from(POLICIES),
        min_uses=st.integers(1, 3),
        eviction=st.sampled_from([LRUPolicy, FIFOPolicy, LFUPolicy]),
    )
    def start(self, capacities, policy, min_uses, eviction):
        self.held = stack(*capacities, policy=policy, min_uses=min_uses, eviction=eviction)
        self.copies = Copies(capacities)
        self.pins, self.known, self.told, self.struck = [], set(), 0, set()

    def do(self, call, key, data):
        """Makes a call; if it is refused, nothing has changed."""
        before, known = state(self.held), set().union(*where(self.held))
        try:
            moves = call(key)
        except OutOfBlocks:
            assert state(self.held) == before
            return
        broken = data.draw(st.sampled_from([()] * 4 + [(i,) for i in range(len(moves))]))
        for move in moves:
            self.struck.discard((move.key, move.target))
        self.copies.carry_out(moves, self.held, broken)
        gone = known - set().union(*where(self.held))
        # Whatever left without being lost was told: its last copy's move has no target.
        let_go = {move.key for move in moves if move.target is None}
        assert broken or gone <= let_go
        assert broken or len(gone) <= self.held.num_dropped - before[2]
        assert not gone & {k for k, tier in self.pins if self.holds(k, tier)}

    def holds(self, key, tier):
        return key in self.held.keys(tier)

    @rule(key=st.integers(0, 9), data=st.data())
    def store(self, key, data):
        self.do(self.held.store, key, data)

    @rule(key=st.integers(0, 9), data=st.data())
    def load(self, key, data):
        if self.held.find(key) is not None:
            self.do(self.held.load, key, data)

    @rule(data=st.data())
    def flush(self, data):
        dirty = set(self.held.dirty)

        def call(_):
            moves = self.held.flush()
            assert set(self.held.dirty) <= dirty
            return moves

        self.do(call, None, data)

    @rule(key=st.integers(0, 9), tier=st.integers(0, 2))
    def pin(self, key, tier):
        if tier < len(self.held.tiers) and self.holds(key, tier):
            self.held.pin(key, tier)
            self.pins.append((key, tier))

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data):
        key, tier = data.draw(st.sampled_from(self.pins))
        self.pins.remove((key, tier))
        if self.holds(key, tier) and self.held._books[tier].pins[key]:
            self.held.unpin(key, tier)

    @rule(key=st.integers(0, 9), tier=st.integers(0, 2))
    def lose(self, key, tier):
        if tier < len(self.held.tiers) and self.holds(key, tier):
            self.copies.tiers[tier].remove(key)
            assert self.held.lost(key, tier) == self.held.find(key) != tier
            self.pins = [pin for pin in self.pins if pin != (key, tier)]

    @invariant()
    def the_books_say_what_is_there(self):
        if hasattr(self, "held"):
            self.held.check()
            assert where(self.held) == self.copies.tiers
            for key in range(10):
                tiers = [i for i, there in enumerate(self.copies.tiers) if key in there]
                assert self.held.find(key) == (tiers[0] if tiers else None)

    @invariant()
    def pinned_copies_stay(self):
        if hasattr(self, "held"):
            for key, tier in self.pins:
                assert not self.held._books[tier].pins.get(key) or key in self.copies.tiers[tier]


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@given(keys=st.lists(st.integers(0, 30), max_size=60))
def test_while_all_fits_below_nothing_is_ever_dropped(policy, keys):
    held, stored = stack(2, 4, 31, policy=policy), set()
    for key in keys:
        held.load(key) if key in stored else held.store(key)
        stored.add(key)
        assert all(held.find(each) is not None for each in stored)
    assert held.num_dropped == 0 and len(held) == len(stored)


def test_capacities_are_kept_at_every_moment():
    """Not only between calls: the moves in order never put a block where there is no room."""
    held, copies = stack(2, 3, 4, policy="write_back"), Copies([2, 3, 4])
    for before, key in pairwise(range(40)):
        copies.carry_out(held.store(key % 11) if held.find(key % 11) is None else [], held)
        if held.find(before % 7) is not None:
            copies.carry_out(held.load(before % 7), held)
    assert where(held) == copies.tiers and held.num_dropped > 0
