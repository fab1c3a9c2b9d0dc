"""The calls drawn do to the blocks what `HFCache` does; the numbers are a ledger's."""

import pytest

from kvlib.show.drawings.generate_calls import ATTENTION, BLOCKS, CALLS, after, generate_calls


@pytest.mark.parametrize("way", ATTENTION)
def test_pads_take_blocks_only_where_the_mask_comes_too_late(way):
    free = [after(step, way).ledger.num_free for step in range(1, len(CALLS) + 1)]
    assert (
        free
        == {
            "kvlib": [8, 8, 5, 5, 5, 5, 6, 5, 5, 8],
            "sdpa": [8, 4, 4, 4, 4, 4, 6, 5, 5, 8],
        }[way]
    )
    shown = generate_calls(4, way)
    assert f"Pool: {free[3]} of {BLOCKS} blocks free" in shown
    assert ("3 pads stored" in shown) == (way == "sdpa")


@pytest.mark.parametrize("way", ATTENTION)
def test_beams_share_all_but_the_block_they_write_into(way):
    ledger = after(9, way).ledger
    a, b = (ledger.table(row) for row in "ab")
    assert a[0] == b[0] and a[1] != b[1] and len(a) == len(b) == 2
    assert ledger.length("a") == ledger.length("b") == 8
    assert "a+b" in generate_calls(8, way) and "a+b" not in generate_calls(6, way)
    ledger.check()


def test_nothing_is_stored_before_the_mask_is_seen():
    assert after(2, "kvlib").ledger.used_tokens == 0
    assert after(2, "sdpa").ledger.seq_ids == ("a", "b")
    assert [after(step, "kvlib").ledger.used_tokens for step in (3, 4)] == [0, 9]  # commit
