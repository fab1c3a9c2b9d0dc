"""What bookkeeping costs beside plain dictionary writes; times are in the record alone."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def best():
    """The least seconds of a few rounds, by way and piece of work."""
    sys.path.insert(0, str(ROOT / "measure"))
    try:
        import bookkeeping_speed
    finally:
        sys.path.remove(str(ROOT / "measure"))
    found = bookkeeping_speed.measure(num_rounds=5, freeze=False)
    return {way: {k: min(v) for k, v in each.items()} for way, each in found.items()}


# Several times what was measured: a step for each token of the sequence, or a search of the line
# of free blocks, costs hundreds.
@pytest.mark.parametrize(
    "way, what, most",
    [
        ("no index", "append", 12),
        ("unique", "append", 120),
        ("unique", "start", 150),
        ("unique", "free", 20),
        ("shared", "start", 150),
        ("shared", "append", 120),
        ("shared", "free", 20),
    ],
)
def test_it_is_a_small_multiple_of_writing_a_dictionary(best, way, what, most):
    assert best[way][what] < most * best[f"{way}, dictionary"][what]


def test_appending_to_a_long_sequence_costs_no_more(best):
    """The shared prompts are three times as long."""
    assert best["shared"]["append"] < 3 * best["unique"]["append"]
