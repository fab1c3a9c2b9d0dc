"""What last blocks leave empty on four traces, against the figures we had before."""

import pytest

from kvlib import measured

SIZES = (8, 16, 32, 64, 128, 256, 512)
# Percent of the slots empty at the final length, counted independently of this repository's code.
EMPTY = {
    "azure-conv": (0.26, 0.54, 1.12, 2.21, 4.38, 8.02, 13.43),
    "azure-code": (0.17, 0.37, 0.73, 1.51, 3.04, 6.09, 11.53),
    "arxiv": (0.12, 0.26, 0.54, 1.08, 2.12, 4.12, 7.79),
    "mooncake-conv": (0.03, 0.06, 0.12, 0.25, 0.51, 1.01, 2.01),
}


@pytest.mark.parametrize("name", EMPTY)
def test_the_record_agrees_with_an_independent_count(name: str) -> None:
    found = measured.load("trace_blocks.cpu")["data"]["empty_percent"][name]
    assert tuple(found[str(size)] for size in SIZES) == pytest.approx(EMPTY[name], abs=0.0051)
