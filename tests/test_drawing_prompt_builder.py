"""The order drawn is the one chosen, and its figures are the library's."""

import re
from itertools import product

import pytest

from kvlib.prompts import PARTS
from kvlib.show.drawings import find
from kvlib.show.drawings.prompt_builder import billed, order_of, prompt_builder

CONTROLS = find("prompt_builder").controls
PLACES = list(product(*(CONTROLS[name].values for name in ("date", "user", "documents"))))
NAIVE = ("first", "first", "before history")


@pytest.mark.parametrize("places", PLACES)
def test_every_choice_is_an_order_of_all_parts(places):
    order = order_of(*places)
    assert sorted(order) == sorted(PARTS) and order[-1] == "question"
    date, user, documents = places
    at = {part: i for i, part in enumerate(order)}
    assert at["tools"] == at["system"] + 1
    assert (at["documents"] < at["history"]) == (documents == "before history")
    assert (at["date"] < at["system"]) == (date == "first")
    assert (at["user"] < at["system"]) == (user == "first")
    assert (at["user"] == at["documents"] + 1) >= (user == "behind documents")
    assert (at["date"] == 5) >= (date == "last")


@pytest.mark.parametrize("places", [NAIVE, ("last", "behind documents", "before history")])
@pytest.mark.parametrize("stamp", ["second", "minute", "day"])
def test_rows_and_figures_are_those_of_the_bill(places, stamp):
    svg = prompt_builder(places[0], stamp, places[1], places[2], False, 4, 16)
    made = billed(order_of(*places), stamp, False, 4, 16)
    naive = billed(order_of(*NAIVE), "second", False, 4, 16)
    for i, (name, (tokens, found)) in enumerate(made.by_part.items()):
        assert f">{i + 1}. {name}<" in svg and f">{100 * found / tokens:.0f} %<" in svg
    assert f">{100 * made.prefix_hit_rate:.0f} % of the prompt tokens are found<" in svg
    assert f"{made.computed_tokens:,} of {made.prompt_tokens:,} tokens are computed" in svg
    less = round(100 * (1 - made.computed_tokens / naive.computed_tokens))
    assert (f"{less} % fewer" in svg) == (less > 0)
    assert f"{made.seconds:.1f} s on an A10, {naive.seconds:.1f} s" in svg


def test_the_bars_are_as_long_as_the_parts_and_filled_as_far_as_found():
    svg = prompt_builder("last", "second", "behind tools", "behind history", False, 4, 16)
    made = billed(order_of("last", "behind tools", "behind history"), "second", False, 4, 16)
    bars = [float(w) for w in re.findall(r'width="([\d.]+)" height="17"', svg)]
    most = max(tokens for tokens, _ in made.by_part.values())
    for (tokens, found), whole, part in zip(
        made.by_part.values(), bars[::2], bars[1::2], strict=True
    ):
        assert whole == pytest.approx(264 * tokens / most, abs=0.01)
        assert part == pytest.approx(264 * found / most, abs=0.01)
