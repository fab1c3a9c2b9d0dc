"""The exactness toy: which old keys and values survive what happens to a text."""

from __future__ import annotations

import re

import pytest

from kvlib.show.drawings import find
from kvlib.show.drawings.exactness import EVENTS, TEXT, changes, still_valid

SETTINGS = [
    (event, causal, moved)
    for event in EVENTS
    for causal in (True, False)
    for moved in (False, True)
]


def changed(event: str, causal: bool, moved: bool) -> list[str]:
    """One word a row, one letter a token: `x` changed, `.` unchanged, `-` gone."""
    rows = changes(event, causal, moved)
    return ["".join("-" if v is None else "x" if v >= 0.005 else "." for v in r) for r in rows]


def picture(event: str, causal: bool, moved: bool) -> str:
    return find("exactness")(event=event, causal=causal, renumbered=moved)


@pytest.mark.parametrize(
    ("setting", "rows"),
    [
        # A mask and fixed positions: nothing changes.
        (("append", True, False), [".....", ".....", ".....", "....."]),
        # No mask: the first layer does not look around, the second has seen the new token.
        (("append", False, False), [".....", ".....", "xxxxx", "xxxxx"]),
        # Everybody moves: keys turn; scores depend on distances, so values stay.
        (("append", True, True), ["xxxxx", ".....", "xxxxx", "....."]),
        (("append", False, True), ["xxxxx", ".....", "xxxxx", "xxxxx"]),
        # What lies before the replaced token stays.
        (("replace", True, False), ["..x..", "..x..", "..xxx", "..xxx"]),
        (("replace", False, False), ["..x..", "..x..", "xxxxx", "xxxxx"]),
        # The later tokens had looked at the dropped one.
        (("drop", True, False), ["-....", "-....", "-xxxx", "-xxxx"]),
        (("drop", True, True), ["-xxxx", "-....", "-xxxx", "-xxxx"]),
    ],
)
def test_what_changes(setting: tuple, rows: list[str]) -> None:
    assert changed(*setting) == rows


def test_only_a_mask_and_fixed_positions_keep_every_token() -> None:
    kept = {setting: still_valid(changes(*setting)) for setting in SETTINGS}
    assert {setting: n for setting, n in kept.items() if n} == {
        ("append", True, False): len(TEXT),
        ("replace", True, False): 2,
    }


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_change_is_rounding_or_large_enough_to_read(setting: tuple) -> None:
    for row in changes(*setting):
        assert all(v is None or v < 1e-12 or v > 0.0105 for v in row)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_picture_shows_every_entry_and_the_verdict_fits(setting: tuple) -> None:
    svg = picture(*setting)
    cells = "".join(changed(*setting))
    assert len(re.findall(r">0</text>", svg)) == cells.count(".")
    assert len(re.findall(r">\d\.\d\d</text>", svg)) == cells.count("x")
    assert svg.count(">gone<") == cells.count("-")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (("append", True, False), "every entry may stay"),
        (("append", False, False), "Nothing may stay but layer 1"),
        (("append", True, True), "The values may"),
        (("append", False, True), "No token may stay"),
        (("replace", True, False), "The first 2 tokens may stay"),
        (("drop", True, False), "still hold what the dropped token said"),
        (("drop", True, True), "No token may stay"),
    ],
)
def test_the_verdict_says_what_may_stay(setting: tuple, words: str) -> None:
    svg = picture(*setting)
    assert words in re.search(r"<desc>(.*?)</desc>", svg).group(1)
    assert words in " ".join(re.findall(r">([^<]+)</text>", svg))
