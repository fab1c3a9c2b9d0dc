"""The picture's parts merge to the whole, in either order; their plain mean does not."""

from math import exp, fsum, inf

import pytest

from kvlib.show.drawings import find
from kvlib.show.drawings.split_kv import KEYS, SCORES, VALUES, Part, attend, bounds, merge

CUTS = find("split_kv").controls["parts"].values


def test_all_keys_at_once_are_the_softmax_written_down() -> None:
    powers = [exp(score) for score in SCORES]
    mixed = fsum(p * v for p, v in zip(powers, VALUES, strict=True)) / fsum(powers)
    assert len(SCORES) == len(VALUES) == KEYS
    assert attend(0, KEYS).out == pytest.approx(mixed)


@pytest.mark.parametrize("parts", CUTS)
@pytest.mark.parametrize("step", [1, -1])
def test_the_parts_are_every_key_once_and_merge_to_the_whole(parts: int, step: int) -> None:
    cuts = bounds(parts)
    assert [key for cut in cuts for key in range(*cut)] == list(range(KEYS))
    so_far = Part(-inf, 0.0)
    for cut in cuts[::step]:
        so_far = merge(so_far, attend(*cut))
    assert so_far == pytest.approx(attend(0, KEYS))


def test_nothing_merged_with_nothing_is_nothing() -> None:
    assert merge(attend(3, 3), attend(5, 5)) == Part(-inf, 0.0)


@pytest.mark.parametrize(("parts", "mean"), [(2, "12.25"), (3, "11.61"), (6, "12.15")])
def test_the_picture_names_the_whole_and_the_plain_mean(parts: int, mean: str) -> None:
    svg = find("split_kv")(parts=parts)
    assert f"All keys at once: 12.16. Plain mean of the parts: {mean}<" in svg
    assert ">Merged: 12.16<" in svg
    assert f"longest part: {KEYS // parts} of 24" in svg
