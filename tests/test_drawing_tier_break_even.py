"""The two ways drawn are the library's, and the break-even names the faster one on both sides."""

import re

import pytest

from kvlib.catalog import gpu, model
from kvlib.prefill_time import Prefill
from kvlib.show.drawings import find
from kvlib.show.drawings.tier_break_even import MODEL, PREFIXES, both, tier_break_even
from kvlib.tier import Tier

CARD = "H100 SXM5"


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize("gb_s, rest", [(25, 1), (6, 512), (50, 4096), (12, 64)])
def test_the_strip_turns_where_the_faster_way_does(gb_s, rest, by_layer):
    for prefix in PREFIXES:
        times = both(CARD, gb_s, 0.1, prefix, rest, by_layer)
        reading = any(prefix in each for each in times.faster)
        assert (times.read_s < times.compute_s) == reading
        svg = tier_break_even(CARD, gb_s, 0.1, prefix, rest, by_layer)
        assert (">Read it: " in svg) == reading


def test_all_times_are_those_of_the_tier_and_the_card():
    prefill, tier = Prefill(gpu(CARD), model(MODEL)), Tier("host", 10**12, 25, latency_s=0.001)
    times = both(CARD, 25, 1, 4096, 64, False)
    assert times.compute_s == prefill(4096 + 64)
    assert times.read_s == pytest.approx(
        tier.read_s(4096 * prefill.token_bytes) + prefill(64, 4096)
    )
    assert both(CARD, 25, 1, 4096, 64, True).read_s < times.read_s


def test_no_break_even_is_said_and_the_strip_has_one_colour():
    svg = tier_break_even(CARD, 0.5, 0.1, 4096, 1, True)
    assert "No prefix of 131,072 tokens" in svg and "Break-even" not in svg
    assert svg.count('fill="url(#tier_break_even-cached)"') == 32 + 1  # layers and key
    assert both(CARD, 0.5, 0.1, 4096, 1, True).faster == []


def test_two_ranges_are_named_and_drawn():
    svg = tier_break_even(CARD, 6, 0.1, 1024, 512, True)
    said = re.search(r"faster from (\S+) to (\S+) tokens, and from (\S+) on", svg)
    first, second = both(CARD, 6, 0.1, 1024, 512, True).faster
    numbers = [int(each.replace(",", "")) for each in said.groups()]
    assert numbers == [first.start, first.stop - 1, second.start]


def test_layers_are_drawn_one_by_one_only_where_they_are_read_so():
    picture = find("tier_break_even")
    counts = [picture(rest=512, by_layer=way).count('height="16"') for way in (False, True)]
    assert counts[1] - counts[0] == 2 * 31
