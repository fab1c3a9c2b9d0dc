"""The heat map tells the right numbers: what a row reads, and what a later token changes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.show.drawings import find
from kvlib.show.drawings.heatmap import TOKENS, changed_rows, sees, weights

NUM = len(TOKENS)
WINDOWS = st.sampled_from(find("attention_heatmap").controls["window"].values)


def words(**values) -> str:
    return " ".join(re.findall(r">([^<]+)</text>", find("attention_heatmap")(**values)))


@given(st.booleans(), WINDOWS, st.booleans())
def test_a_row_sums_to_one_over_exactly_what_it_sees(
    mask: bool, window: int, swapped: bool
) -> None:
    for query, row in enumerate(weights(mask, window, swapped)):
        assert sum(row) == pytest.approx(1)
        for key, share in enumerate(row):
            assert (share > 0) == sees(query, key, mask, window)


@given(st.integers(1, NUM), WINDOWS)
def test_a_later_token_changes_only_its_own_row_while_the_mask_is_on(
    step: int, window: int
) -> None:
    assert changed_rows(step, True, window) == ([NUM - 1] if step == NUM else [])


@given(st.integers(1, NUM), WINDOWS)
def test_without_the_mask_a_later_token_changes_every_row(step: int, window: int) -> None:
    assert changed_rows(step, False, window) == list(range(step))


def test_without_the_mask_tokens_to_come_get_weight() -> None:
    assert sum(weights(mask=False, window=8)[4][5:]) > 0.05
    assert "of its weight is on tokens that do not exist yet" in words(mask=False)
    assert "exist yet" not in words(mask=True)
    assert "exist yet" not in words(mask=False, step=NUM)


@pytest.mark.parametrize(("window", "read"), [(8, "5 keys"), (3, "3 keys"), (1, "1 key and value")])
def test_one_row_reads_the_keys_in_its_window(window: int, read: str) -> None:
    assert f"One query row; it reads {read}" in words(window=window)


def test_the_numbers_below_the_grid_are_the_newest_row() -> None:
    row = [f"{share:.2f}" if share else "-" for share in weights(True, 8)[4]]
    assert " ".join([*row, "weight"]) in words(step=5)


def test_changed_rows_are_named_beside_the_grid() -> None:
    assert words(step=NUM, swapped=True).count("changed") == 1
    assert words(step=6, mask=False, swapped=True).count("changed") == 6


def test_the_area_of_a_square_is_its_weight() -> None:
    root = ElementTree.fromstring(find("attention_heatmap")(step=2))
    rects = [r for r in root.iter() if r.tag.endswith("rect") and not r.get("stroke")]
    sides = [float(r.get("width")) for r in rects if 1 < float(r.get("width")) < 36]
    first, *second = (side * side for side in sides if side not in (8, 12))
    assert [area / first for area in second] == pytest.approx(weights(True, 8)[1][:2], abs=0.01)
