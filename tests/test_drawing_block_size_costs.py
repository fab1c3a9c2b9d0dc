"""The four curves are what a ledger, the record and the definition of a prefix hit give."""

from itertools import pairwise

import pytest

from kvlib import PagedLedger, measured, workloads
from kvlib.show.drawings import find
from kvlib.show.drawings.block_size_costs import (
    BLOCK_SIZES,
    LENGTHS,
    costs,
    finals,
    kernel_times,
    shareable,
)


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_the_empty_slots_and_entries_are_those_a_ledger_holds(block_size: int) -> None:
    lengths = finals("arxiv")
    ledger = PagedLedger(sum(lengths), block_size)
    for seq_id, length in enumerate(lengths):
        ledger.add(seq_id)
        ledger.commit(ledger.plan({seq_id: [0] * length}))
    now = costs("arxiv", block_size)
    empty = 1 - ledger.used_tokens / ledger.reserved_tokens
    assert now.empty == pytest.approx(100 * empty)
    assert now.entries * len(lengths) == pytest.approx(ledger.pool.num_held)


def test_the_kernel_times_are_those_of_the_record() -> None:
    record = measured.load("block_speed.cpu")
    assert record is not None
    times = record["data"]["rows"][0]["kernel_takes_times"]
    assert kernel_times() == {int(size): value for size, value in times.items()}
    assert tuple(kernel_times()) == BLOCK_SIZES


def test_a_prompt_shares_at_most_all_but_its_last_token_with_an_earlier_text() -> None:
    talk = workloads.conversations(0, system_tokens=512, user_tokens=128, output_tokens=256)
    for place, (each, found) in enumerate(zip(talk, shareable(), strict=True)):
        earlier = [other.token_ids for other in talk.requests[:place]]
        assert found < each.prompt_tokens
        assert not found or any(t[:found] == each.token_ids[:found] for t in earlier)
        longer = each.token_ids[: found + 1]
        if found + 1 < each.prompt_tokens:
            assert not any(text[: found + 1] == longer for text in earlier)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_waste_and_loss_rise_with_the_block_and_entries_fall(lengths: str) -> None:
    rows = [costs(lengths, size) for size in BLOCK_SIZES]
    for low, high in pairwise(rows):
        assert low.empty < high.empty and low.lost < high.lost and low.entries > high.entries


def test_the_picture_shows_the_numbers_of_the_chosen_size() -> None:
    svg = find("block_size_costs")(block_size=256)
    for words in (">8.91 %<", ">5.9<", ">9.3 %<", f">{kernel_times()[256]:.2f}<"):
        assert words in svg
