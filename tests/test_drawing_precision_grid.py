"""The grid of formats: bits counted, errors and perplexities as measured."""

import pytest

from kvlib import measured
from kvlib.show.drawings import find
from kvlib.show.drawings.precision_grid import CODES, GROUPS, SIDES, area, cell, precision, record


def test_the_file_of_the_drawing_is_the_record() -> None:
    found = measured.load("quantized_error.cpu")
    assert found is not None
    for name in ("grid", "exact_perplexity", "block_size"):
        assert record()[name] == found["data"][name]


@pytest.mark.parametrize("side", SIDES)
def test_every_cell_is_there_with_the_bits_that_are_counted(side: str) -> None:
    for code in CODES:
        for group in GROUPS:
            bits = precision(code, group).bits_per_element(64, record()["block_size"])
            assert cell(side, code, group)["bits_per_element"] == bits


def test_fewer_bits_are_further_off_in_every_column() -> None:
    for side in SIDES:
        for group in GROUPS:
            errors = [cell(side, code, group)["relative_error"] for code in ("8", "4", "2")]
            assert errors == sorted(errors) and errors[2] > 3 * errors[1]


def test_keys_gain_by_channel_what_values_do_not() -> None:
    row, channel = (cell("keys", "4", g)["relative_error"] for g in ("a whole row", "a channel"))
    assert row > 3 * channel
    row, channel = (cell("values", "2", g)["perplexity"] for g in ("32 of a row", "a channel"))
    assert channel > 1.2 * row


def test_the_picture_says_what_it_marks() -> None:
    svg = find("precision_grid")(side="keys", code="2", group="a channel")
    assert "2 bits, one scale for a channel: 19 % off" in svg
    assert "3 bits a number; 5.33 times as many fit as in float16." in svg
    assert area(0.001) < area(0.01) < area(0.1) < area(1.0) == 1
