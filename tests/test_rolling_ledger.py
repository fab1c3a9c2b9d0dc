"""Rings: what is in them, what was overwritten, and how far back a sequence can go."""

import pytest

from kvlib.plan import BlockCopy
from kvlib.rolling_ledger import RollingLedger
from kvlib.token_budget import sinks_and_window
from kvlib.waste import Allocation, split
from test_checks import found, table


def after(num_tokens, window=4, num_seqs=2):
    ledger = RollingLedger(num_seqs, window)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": [0] * num_tokens}))
    return ledger


@pytest.mark.parametrize("num_tokens, used", [(0, 0), (3, 3), (4, 4), (6, 4), (1000, 4)])
def test_overwritten_tokens_are_not_used_any_more(num_tokens, used):
    ledger = after(num_tokens)
    assert (ledger.length("a"), ledger.used_tokens, ledger.reserved_tokens) == (num_tokens, used, 4)
    parts = split(2 * 4, [Allocation(ledger.reserved_tokens, ledger.used_tokens, 4)])
    assert (parts.used, parts.used + parts.reservation, parts.free) == (used, 4, 4)


def test_a_position_has_the_slot_of_its_remainder():
    ledger = after(6)
    ledger.add("b")
    step = ledger.plan({"b": [0] * 3, "a": [0] * 3})
    assert step.positions == (0, 1, 2, 6, 7, 8)
    assert step.slot_mapping == (4, 5, 6, 2, 3, 0)
    assert (step.block_table, step.block_size) == (((1,), (0,)), 4)
    assert step.context_lens == (3, 9)


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("num_tokens", range(12))
def test_it_goes_back_as_far_as_the_next_query_finds_its_window(window, num_tokens):
    """Against a ring of positions, written one by one."""
    ring = {}
    for position in range(num_tokens):
        ring[position % window] = position
    for keep in range(num_tokens + 1):
        seen = range(max(0, keep - window + 1), keep)
        ledger = after(num_tokens, window)
        if any(ring[position % window] != position for position in seen):
            before = ledger.held("a")
            with pytest.raises(ValueError, match=f"are gone, so it cannot go back to {keep}"):
                ledger.truncate("a", keep)
            assert (ledger.length("a"), ledger.held("a")) == (num_tokens, before)
        else:
            ledger.truncate("a", keep)
            held = ledger.held("a")
            assert set(seen) <= set(held) and len(held) == ledger.used_tokens
            assert all(ring[position % window] == position for position in held)
        ledger.check()


def test_what_was_taken_back_does_not_come_again():
    """After 6 tokens positions 2 to 5 are held; taking back the last leaves three of them."""
    ledger = after(6)
    ledger.truncate("a", 5)
    assert ledger.held("a") == [2, 3, 4]
    with pytest.raises(ValueError, match="those before position 2 are gone"):
        ledger.truncate("a", 4)
    ledger.commit(ledger.plan({"a": [0]}))
    assert ledger.held("a") == [2, 3, 4, 5]


def test_a_fork_and_a_reordered_beam_copy_the_ring():
    ledger = after(6)
    ledger.truncate("a", 5)
    assert ledger.fork("a", "b") == [BlockCopy(0, 1, 4)]
    assert ledger.held("b") == [2, 3, 4]
    ledger.truncate("a", 0)
    assert ledger.reorder({"a": "b", "b": "b"}) == [BlockCopy(1, 0, 4)]
    assert ledger.held("a") == ledger.held("b") == [2, 3, 4]
    assert (ledger.row("a"), ledger.row("b")) == (1, 0)  # the source's row goes to the first
    ledger.check()


@pytest.mark.parametrize("sinks, window", [(0, 1), (0, 4), (2, 3), (3, 1), (5, 2)])
@pytest.mark.parametrize("num_tokens", range(13))
def test_a_row_goes_back_as_far_as_the_next_query_finds_sinks_and_window(sinks, window, num_tokens):
    """Against a row of slots, written one by one."""
    row = {}
    for at in range(num_tokens):
        row[at if at < sinks else sinks + (at - sinks) % window] = at
    for keep in range(num_tokens + 1):
        ledger = RollingLedger(2, window, sinks)
        ledger.add("a")
        ledger.commit(ledger.plan({"a": [0] * num_tokens}))
        assert ledger.held("a") == sinks_and_window(num_tokens, sinks, window)
        assert [row[slot] for slot in ledger.held_slots("a")] == ledger.held("a")
        seen = set(sinks_and_window(keep + 1, sinks, window)) - {keep}
        if seen <= set(row.values()):
            ledger.truncate("a", keep)
            assert seen <= set(ledger.held("a")) <= set(range(keep))
            assert [row[slot] for slot in ledger.held_slots("a")] == ledger.held("a")
        else:
            with pytest.raises(ValueError, match=f"are gone, so it cannot go back to {keep}"):
                ledger.truncate("a", keep)
            assert ledger.length("a") == num_tokens
        ledger.check()


def test_a_second_row_has_its_own_slots_and_sinks():
    ledger = RollingLedger(2, 3, sinks=2)
    for seq_id, num_tokens, slots in (("a", 4, (0, 1, 2, 3)), ("b", 6, (5, 6, 7, 8, 9, 7))):
        ledger.add(seq_id)
        plan = ledger.plan({seq_id: [0] * num_tokens})
        assert plan.slot_mapping == slots
        ledger.commit(plan)
    assert (ledger.used_tokens, ledger.reserved_tokens) == (4 + 5, 10)


def test_of_a_sequence_that_is_not_there_nothing_is_held():
    ledger = RollingLedger(2, 4)
    for call in (ledger.held, ledger.held_slots):
        with pytest.raises(KeyError, match="no sequence 'z'"):
            call("z")


@pytest.mark.parametrize("sinks", [-1, 1.0])
def test_sinks_may_be_none_and_never_less(sinks):
    with pytest.raises((TypeError, ValueError), match="sinks must be"):
        RollingLedger(1, 4, sinks)
    assert RollingLedger(1, 4).sinks == 0


@pytest.mark.parametrize("sizes", [(0, 4), (1, 0), (1, -1), (1, 2.0), (True, 4), (1, 0, 2)])
def test_sizes_are_positive_whole_numbers(sizes):
    with pytest.raises((TypeError, ValueError), match=r"must be a(t least 1| whole number)"):
        RollingLedger(*sizes)


@table(
    of_nobody=(lambda g: g._gone.update(z=0), "a length without what is gone"),
    unknown=(lambda g: g._gone.pop("a"), "a length without what is gone"),
    too_many=(lambda g: g._gone.update(a=3), "no slot for a token"),
    in_the_sinks=(lambda g: g._gone.update(b=1), "a ring that begins in the sinks"),
    at_a_sinks_end=(lambda g: g._gone.update(b=2), "a ring that begins in the sinks"),
    beyond=(lambda g: g._gone.update(b=5), "a ring that begins in the sinks"),
    gap=(lambda g: g._gone.update(a=6), "a gap in a window"),
)
def test_a_check_finds_what_is_wrong_with_a_ring(spoil, named):
    """Two sinks and a ring of three; 7 tokens of "a" went through, 4 of "b"."""
    ledger = RollingLedger(2, 3, sinks=2)
    for seq_id, num_tokens in (("a", 7), ("b", 4)):
        ledger.add(seq_id)
        ledger.commit(ledger.plan({seq_id: [0] * num_tokens}))
    found(ledger, spoil, named)
