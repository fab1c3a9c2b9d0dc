"""The split that is drawn is the library's own, and what the page says of it holds."""

import re

import pytest

from kvlib import catalog
from kvlib.show.drawings.sharded_cache import MODELS, cells, sharded_cache, sized, split

CUTS = pytest.mark.parametrize("cut", ["heads", "tokens"])


@CUTS
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16])
def test_all_ranks_hold_the_whole_cache_and_copies_only_of_heads(model, cut, ranks):
    made, shape = split(model, cut, ranks, 1000), catalog.model(model)
    assert made.whole == shape.kv_bytes(1000)
    heads = shape.kv.num_kv_heads
    copies = max(1, ranks / heads) if cut == "heads" else 1
    assert sum(made.nbytes) == made.whole * copies
    assert len(made.nbytes) == len(made.holds) == ranks
    assert (made.sent == 0) == (ranks == 1)


@CUTS
def test_what_travels_does_not_depend_on_the_length(cut):
    assert split("Llama-3.2-3B", cut, 4, 40).sent == split("Llama-3.2-3B", cut, 4, 128000).sent


def test_figures_of_the_page():
    assert "66.7 % of 23 MB" in sharded_cache("SmolLM2-135M", "heads", 2, 1000)
    assert "50.4 % of" in sharded_cache("SmolLM2-135M", "tokens", 2, 1000)
    for ranks in (3, 4, 8):
        assert "33.3 % of" in sharded_cache("SmolLM2-135M", "heads", ranks, 1000)
    assert "2.67 times one cache" in sharded_cache("SmolLM2-135M", "heads", 8, 1000)
    svg = sharded_cache("Llama-3.1-405B", "heads", 16, 128000)
    assert "12.5 % of 66.1 GB" in svg and "2.00 times one cache" in svg and "3.87 MB" in svg
    svg = sharded_cache("Llama-3.1-405B", "tokens", 16, 128000)
    assert "6.25 % of 66.1 GB" in svg and "125 MB" in svg
    sent = [split("Llama-3.2-3B", cut, 2, 1000).sent for cut in ("heads", "tokens")]
    assert sent[1] == pytest.approx(4 * sent[0], rel=0.01)


def test_a_text_beyond_the_context_is_named_so():
    assert "beyond its context" in sharded_cache("SmolLM2-135M", "heads", 2, 128000)
    assert "beyond its context" not in sharded_cache("SmolLM2-135M", "heads", 2, 8000)


def test_a_sequence_of_three_blocks_leaves_ranks_empty():
    made = split("Llama-3.2-3B", "tokens", 8, 40)
    assert [n > 0 for n in made.nbytes] == [True] * 3 + [False] * 5
    assert made.holds[2] == "8 tokens"


def test_cells_name_the_holders():
    assert cells("heads", 3, 2) == [["0"] * 8, ["0"] * 8, ["1"] * 8]
    assert cells("tokens", 1, 3) == [["0", "1", "2", "0", "1", "2", "0", "1"]]
    assert cells("heads", 2, 5)[1][0] == "3-4"


def test_bars_are_shares_of_the_whole():
    svg = sharded_cache("SmolLM2-135M", "heads", 2, 1000)
    bars = [float(w) for w in re.findall(r'<rect[^>]*width="([\d.]+)"[^>]*height="8"', svg)]
    frame, first, _, second = bars[-4:]
    assert first / frame == pytest.approx(2 / 3, abs=0.01)
    assert second / frame == pytest.approx(1 / 3, abs=0.01)


def test_bytes_are_written_to_three_digits():
    assert [sized(n) for n in (0, 999_999, 1_000_000, 10**9)] == ["0 KB", "1 MB", "1 MB", "1 GB"]
