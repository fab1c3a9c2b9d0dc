"""The histogram counts every request, and 65 % saved and 2.86 times the requests are one figure."""

import re
from xml.etree import ElementTree

import pytest

from kvlib.show.drawings import find
from kvlib.show.drawings.reservation_lengths import RESERVED, UNIFORM, lengths, saved

NAMES = find("reservation_histogram").controls["requests"].values
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(("reserved", "percent"), [(500, 47.5), (750, 65.0)])
def test_the_outlines_lengths_need_750_slots_each_for_65_percent(
    reserved: int, percent: float
) -> None:
    fit, empty = saved(UNIFORM, reserved)
    assert fit == 1
    assert 100 * empty == pytest.approx(percent, abs=0.051)
    blocks = sum(-(-n // 16) * 16 for n in range(10, 501))
    assert empty == pytest.approx(1 - blocks / (491 * reserved))


@pytest.mark.parametrize("name", NAMES)
def test_more_reserved_lets_more_fit(name: str) -> None:
    shares = [saved(name, reserved)[0] for reserved in RESERVED]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert shares[0] == sum(n <= 256 for n in lengths(name)) / len(lengths(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reserved", RESERVED)
def test_the_factor_is_the_saving_in_other_words(name: str, reserved: int) -> None:
    svg = find("reservation_histogram")(requests=name, reserved=reserved)
    percent, factor = re.search(r"([\d.]+) % empty. Blocks of 16: ([\d.]+) times", svg).groups()
    assert float(factor) == pytest.approx(1 / (1 - float(percent) / 100), rel=0.04)


def test_the_bars_stand_for_all_requests() -> None:
    root = ElementTree.fromstring(find("reservation_histogram")(requests=UNIFORM, reserved=256))
    bars = [each for each in root.iter(f"{SVG}rect") if each.get("width") == "16.55"]
    heights = [float(bar.get("height")) for bar in bars]
    # The tallest bar, 110 high, holds the 138 lengths from 8 * 2 ** 5.5 = 362.04 to 500.
    assert sum(heights) == pytest.approx(491 * 110 / 138, abs=0.2)
    assert {bar.get("y") for bar in bars if bar.get("fill").startswith("var(--kv-paper")}
