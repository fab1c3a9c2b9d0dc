"""The roofline drawing puts each step on the side its bytes and operations say."""

from __future__ import annotations

import re
from itertools import product
from xml.etree import ElementTree

import pytest

from kvlib import catalog
from kvlib.roofline import attainable_tflops, decode_cost
from kvlib.show.drawings import find
from kvlib.show.drawings.roofline_point import MODELS, bound

DRAW = find("roofline_point")


def words(svg: str) -> str:
    return " ".join(re.findall(r">([^<]+)</text>", svg))


def test_llama_3_8b_on_an_h100_decodes_at_196_tokens_a_second_at_best():
    said = words(DRAW())
    # (16.06 GB + 1.07 GB) / 3,350 GB/s = 5.11 ms
    assert "at most 196 tokens a second" in said
    assert "At least 5.11 ms a step, and 151 ms for the prompt." in said
    assert "ridge 295" in said
    assert "1.19 FLOP/byte bandwidth-bound" in said
    # 8192 x 2 x 8.03e9 operations and those of the attention pairs, at 989.4 TFLOP/s
    assert "8,706 FLOP/byte compute-bound" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"batch": 512, "context": 128}, "335 FLOP/byte compute-bound"),
        ({"batch": 1024}, "18.7 FLOP/byte bandwidth-bound"),
        ({"batch": 32}, "All weights read, the batch decodes at most 2,126 tokens a second."),
        ({"context": 128, "gpu": "L4"}, "128 FLOP/byte bandwidth-bound"),
        ({"batch": 128}, "Does not fit: it takes 153 GB, the card has 80 GB."),
        ({"context": 16384}, "Beyond the model: published for 8,192 tokens."),
        ({"model": "Mixtral-8x7B"}, "experts of one token; a batch reads more"),
    ],
)
def test_it_says_which_side_and_what_does_not_hold(values, said):
    assert said in words(DRAW(**values))


def test_a_batch_that_just_fits_is_not_refused():
    llama, card = catalog.model("Llama-3-8B"), catalog.gpu("H100 SXM5")
    most = llama.max_num_seqs(card, 8192, reserved=0, weight_dtype="bfloat16")
    assert 32 <= most < 64
    assert "Does not fit" not in words(DRAW(batch=32))
    assert "Does not fit" in words(DRAW(batch=64))


def test_no_model_with_a_latent_is_offered():
    assert "DeepSeek-V3" not in MODELS
    assert len(MODELS) == len(catalog.models()) - 2


@pytest.mark.parametrize("gpu", catalog.gpus())
def test_the_side_is_that_of_the_longer_time(gpu):
    card, shape = catalog.gpu(gpu), catalog.model("Llama-3-8B")
    peak = 1e12 * (card.bf16_dense_tflops or card.fp16_dense_tflops)
    for batch, context in product((1, 64, 1024), (128, 8192)):
        cost = decode_cost(shape, batch, context, weight_dtype="bfloat16", kv_dtype="bfloat16")
        moving = cost.num_bytes / (card.memory_bandwidth_gb_s * 1e9)
        side = "bandwidth" if moving > cost.flops / peak else "compute"
        assert bound(card, cost) == side


def test_both_points_stand_on_the_roof():
    """A marker's centre has the height of the roof at its intensity, on the drawing's own axes."""
    root = ElementTree.fromstring(DRAW())
    space = "{http://www.w3.org/2000/svg}"
    markers = [r for r in root.iter(f"{space}rect") if r.get("width") == r.get("height") == "14"]
    prefill, decode = ((float(m.get("x")) + 7, float(m.get("y")) + 7) for m in markers)
    card, shape = catalog.gpu("H100 SXM5"), catalog.model("Llama-3-8B")
    step = decode_cost(shape, 1, 8192, weight_dtype="bfloat16", kv_dtype="bfloat16")
    lines = [line.get("points").split() for line in root.iter(f"{space}polyline")]
    roof = [tuple(map(float, p.split(","))) for p in next(x for x in lines if len(x) == 3)]
    assert roof[1][1] == roof[2][1] == prefill[1]
    assert roof[0][0] < decode[0] < roof[1][0] < prefill[0]
    slope = (roof[1][1] - roof[0][1]) / (roof[1][0] - roof[0][0])
    assert decode[1] == pytest.approx(roof[0][1] + slope * (decode[0] - roof[0][0]), abs=0.05)
    # Five decades of TFLOP/s over the height of the sheet.
    gap = prefill[1] - decode[1]
    ratio = attainable_tflops(card, 1e9) / attainable_tflops(card, step.intensity)
    assert 10 ** (-gap * 5 / 164) == pytest.approx(ratio, rel=0.01)
