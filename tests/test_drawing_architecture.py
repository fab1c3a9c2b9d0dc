"""The sizes in the picture are those of the shapes, and the design reads its controls right."""

import re

import pytest

from kvlib import catalog
from kvlib.show.drawings import find
from kvlib.show.drawings.architecture import PUBLISHED, designed
from kvlib.sizes import KVShape


def draw(**values) -> str:
    return find("architecture_bytes")(**values)


def test_the_defaults_are_llama_3_8b() -> None:
    assert designed(32, 8, 128, 0, "0", 1).bytes_per_token("fp8") == 65_536
    assert ">Yours: 128.0 KiB a token, 1.00 GiB at 8,192<" in draw()
    assert draw().count(">1.00 GiB<") == 2


def test_a_latent_replaces_the_heads() -> None:
    mine = designed(60, 64, 256, 512, "0", 1)
    assert mine.elements_per_layer == catalog.model("DeepSeek-V2").kv.elements_per_layer == 576
    assert designed(60, 64, 256, 512, "1/2", 1).num_local_layers == 30
    svg = draw(layers=60, latent=512)
    assert svg.count(">67.5 KiB<") == 2


def test_layers_that_share_keep_one_cache_and_windows_are_counted_among_those() -> None:
    mine = designed(32, 8, 128, 0, "3/4", 3)
    assert (mine.num_layers, mine.num_local_layers) == (11, 8)
    svg = draw(sharing=3, local="3/4", context=2**17)
    assert "11 of 32 layers keep keys and values of their own." in svg
    assert "8 of these 11 stop at 1,024 tokens" in svg
    kept = KVShape(11, 8, 128, window=1024, num_local_layers=8)
    gib = kept.bytes_per_sequence(2**17, "bfloat16") / 2**30
    assert f"{gib:.2f} GiB at 131,072" in svg


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_beyond_its_context_is_marked(name: str) -> None:
    marked = f"{PUBLISHED[name]}*" in draw(context=2**17)
    assert marked == (catalog.model(name).context_length < 2**17)
    assert "*" not in draw(context=1024)


def test_no_window_says_that_every_layer_keeps_every_token() -> None:
    assert "Every layer keeps every token." in draw()
    assert "Every layer keeps every token." not in draw(local="1/2")


def test_a_layer_with_a_window_adds_nothing_beyond_it() -> None:
    half, every = (" ".join(re.findall(r">([^<]+)</", draw(local=v))) for v in ("1/2", "1"))
    assert "16 of these 32 stop at 1,024 tokens; from there on a token adds 64.0 KiB." in half
    assert "All 32 stop at 1,024 tokens; from there on a token adds nothing." in every


def test_bars_are_as_long_as_sequences_are_large_and_those_that_keep_less_are_counted() -> None:
    svg = draw(local="1/2", context=2**15)
    drawn = [float(width) for width in re.findall(r'<rect x="124" [^>]*?width="([\d.]+)"', svg)]
    mine = designed(32, 8, 128, 0, "1/2", 1)
    shapes = [mine, *(catalog.model(name).kv for name in PUBLISHED)]
    sizes = [shape.bytes_per_sequence(2**15, "bfloat16") for shape in shapes]
    assert drawn == pytest.approx([124 / 16 * size / 2**30 for size in sizes], abs=0.06)
    assert sum(size < sizes[0] for size in sizes) == 1
    assert "Smaller than yours: 1." in svg
    assert "Smaller than yours: 2." in draw()


def test_one_head_is_one_head() -> None:
    assert "32 layers, 1 head of 128;" in draw(kv_heads=1)
