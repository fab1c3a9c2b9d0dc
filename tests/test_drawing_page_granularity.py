"""The pages of the picture are those that bytes need, and its waste is that of a ledger."""

import pytest

from kvlib import PagedLedger
from kvlib.engine_configs import LLAMA_3_8B, pages_of_2_mib
from kvlib.show.drawings import find
from kvlib.show.drawings.page_granularity import BUDGET, finals, held, num_pages, row_bytes


def test_a_page_of_one_token_more_is_a_page_more_and_a_token_may_lie_across_two() -> None:
    assert [num_pages(n, 2048, 2**21) for n in (1, 1024, 1025)] == [1, 1, 2]
    assert [num_pages(n, 48, 64) for n in (1, 2, 3, 4, 5)] == [1, 2, 3, 3, 4]
    assert 2**21 // row_bytes("Llama-3-8B") == pages_of_2_mib(LLAMA_3_8B)


@pytest.mark.parametrize("tokens", [16, 1024])
def test_a_page_of_whole_tokens_wastes_what_a_ledger_wastes(tokens: int) -> None:
    lengths = finals("azure-code")
    ledger = PagedLedger(sum(lengths), tokens)
    for seq_id, length in enumerate(lengths):
        ledger.add(seq_id)
        ledger.commit(ledger.plan({seq_id: [0] * length}))
    now = held("Llama-3-8B", "azure-code", tokens * row_bytes("Llama-3-8B"))
    assert now.empty == pytest.approx(1 - ledger.used_tokens / ledger.reserved_tokens)
    mean_bytes = ledger.reserved_tokens * LLAMA_3_8B.bytes_per_token("bfloat16") / len(lengths)
    assert now.fit == BUDGET // mean_bytes


def test_the_picture_tells_pages_tokens_and_waste() -> None:
    svg = find("page_granularity")(page=2048, model="OPT-13B", lengths="azure-conv")
    middle = finals("azure-conv")[200]
    assert ">OPT-13B: 204.8 tokens a page of 2 MiB<" in svg
    assert f">{num_pages(middle, 10_240, 2**21)} pages<" in svg
    now = held("OPT-13B", "azure-conv", 2**21)
    assert f">{100 * now.empty:.1f} %, {now.fit} fit<" in svg
    assert ">2 x 40 pages at a time, 160 MiB; azure-conv sample<" in svg
