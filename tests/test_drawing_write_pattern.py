"""The write pattern tells which slots a step writes, and how many writes that takes."""

import re

import pytest

from kvlib.ledger import ContiguousLedger
from kvlib.show.drawings import find
from kvlib.show.drawings.write_pattern import CACHED, ROW_LEN, WAYS, survivors, writes

BATCHES, CHUNKS = (1, 2, 4, 8), (1, 2, 4, 8)


def planned(batch, chunk):
    """Row and position of every new token, as the ledger plans them."""
    ledger = ContiguousLedger(batch, ROW_LEN)
    for row in range(batch):
        ledger.add(row)
        ledger.commit(ledger.plan({row: [0] * CACHED[row]}))
    slots = ledger.plan({row: [0] * chunk for row in range(batch)}).slot_mapping
    return {divmod(slot, ROW_LEN) for slot in slots}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_way_with_rows_writes_the_slots_of_the_plan(batch, chunk):
    for way in ("loop", "slice", "index"):
        done = writes(batch, chunk, way)
        assert len(done) == batch * chunk
        assert {(row, position) for _, row, position in done} == planned(batch, chunk)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_numbers_of_the_writes(batch, chunk):
    calls = {way: [call for call, _, _ in writes(batch, chunk, way)] for way in WAYS}
    assert sorted(calls["loop"]) == list(range(1, batch * chunk + 1))
    assert sorted(set(calls["slice"])) == list(range(1, batch + 1))
    assert set(calls["index"]) == {1}
    assert calls["shared"] == calls["loop"]


def test_a_slice_is_one_run_of_one_row():
    done = writes(8, 8, "slice")
    for number in range(1, 9):
        slots = [(row, position) for call, row, position in done if call == number]
        first_row, first = slots[0]
        assert slots == [(first_row, first + i) for i in range(8)]


def test_one_row_for_all_keeps_as_many_tokens_as_it_has_written_slots():
    assert survivors(1, 8) == (13, 13)
    assert survivors(8, 2) == (9, sum(CACHED) + 16)
    assert {row for _, row, _ in writes(8, 8, "shared")} == {0}
    assert "9 of 22 tokens are left" in find("write_pattern")(batch=4, chunk=2, way="shared")


def test_a_slot_shows_the_last_write_to_it():
    svg = find("write_pattern")(batch=4, chunk=2, way="shared")
    shown = [int(n) for n in re.findall(r'font-weight="600">(\d+)</text>', svg)]
    assert shown == [4, 8, 2, 6, 1, 5, 3, 7]
    assert 'fill="url(#write_pattern-wasted)"' in svg
    assert "wasted" not in find("write_pattern")(batch=4, chunk=2, way="index")
