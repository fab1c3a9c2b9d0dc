"""Large pages: a hint that changes no value, asked for where there are whole pages to ask for."""

import sys

import pytest
import torch

from kvlib import KVStore
from kvlib.tensors import huge_pages
from kvlib.tensors.huge_pages import PAGE_BYTES, ask_for_huge_pages


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for large pages")
@pytest.mark.parametrize("num_pages", [2, 5])
def test_whole_pages_inside_the_storage_are_asked_for(num_pages: int) -> None:
    asked = ask_for_huge_pages(torch.empty(num_pages * PAGE_BYTES, dtype=torch.uint8))
    assert asked % PAGE_BYTES == 0
    assert (num_pages - 1) * PAGE_BYTES <= asked <= num_pages * PAGE_BYTES


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0),
        torch.empty(100),
        torch.empty(4 * PAGE_BYTES, dtype=torch.uint8, device="meta"),
    ],
    ids=["nothing", "less than a page", "no memory at all"],
)
def test_where_there_is_no_whole_page_nothing_is_asked(tensor: torch.Tensor) -> None:
    assert ask_for_huge_pages(tensor) == 0


def test_a_system_without_the_call_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_libc", lambda: None)
    assert ask_for_huge_pages(torch.empty(4 * PAGE_BYTES, dtype=torch.uint8)) == 0


def test_values_written_before_the_hint_stay() -> None:
    numbers = torch.arange(2 * PAGE_BYTES // 4, dtype=torch.int32)
    ask_for_huge_pages(numbers)
    assert torch.equal(numbers, torch.arange(2 * PAGE_BYTES // 4, dtype=torch.int32))


def test_a_large_store_asks_for_both_of_its_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def note(tensor: torch.Tensor) -> int:
        asked.append(tensor.untyped_storage().nbytes())
        return ask_for_huge_pages(tensor)

    monkeypatch.setattr("kvlib.tensors.aligned.ask_for_huge_pages", note)
    store = KVStore(num_layers=2, num_blocks=64, block_size=16, num_kv_heads=8, head_dim=64)
    assert asked == [store.nbytes // 2] * 2
