"""The phase explorer's lanes are those of the roofline, and the longest one is named."""

from __future__ import annotations

import re

import pytest

from kvlib import catalog
from kvlib.roofline import decode_cost, prefill_cost, step_seconds
from kvlib.show.drawings import find
from kvlib.show.drawings.phase_explorer import lanes

DRAW = find("phase_explorer")


def words(svg):
    return " ".join(re.findall(r">([^<]+)</text>", svg))


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("context", [32, 1024, 32768])
def test_without_overhead_the_step_is_that_of_the_roofline(phase, context):
    card, shape = catalog.gpu("H100 SXM5"), catalog.model("Llama-3-8B")
    cost = (
        decode_cost(shape, 4, context, weight_dtype="bfloat16", kv_dtype="bfloat16")
        if phase == "decode"
        else prefill_cost(shape, context, weight_dtype="bfloat16", kv_dtype="bfloat16")
    )
    found = lanes("Llama-3-8B", "H100 SXM5", phase, 4, context, 12, 0)
    assert found.step_s == pytest.approx(step_seconds(card, cost))
    assert found.name != "overhead"


def test_a_small_model_on_a_large_card_waits_for_its_calls():
    # 30 layers x 12 kernels x 5 us = 1.8 ms; 268 MB and 1,024 tokens at 3,350 GB/s
    said = words(DRAW(model="SmolLM2-135M"))
    assert "starting the kernels: 1.8 ms (the longest)" in said
    assert "moving the bytes: 0.087 ms" in said
    assert "Bound by overhead: at least 1.8 ms." in said
    assert "Bound by bandwidth" in words(DRAW(model="SmolLM2-135M", call_us=0))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "Bound by bandwidth: at least 4.83 ms."),
        ({"phase": "prefill"}, "Bound by compute: at least 16.9 ms."),
        ({"phase": "prefill", "context": 128}, "The prompt is too short to use the card"),
        ({"batch": 512, "context": 128}, "Bound by compute"),
        ({"batch": 512, "context": 128}, "The card is full. More tokens"),
        ({"phase": "prefill", "context": 4096}, "reuse a prefix. More tokens"),
        ({"calls": 40, "call_us": 5}, "Bound by overhead: at least 6.4 ms."),
        ({"calls": 1, "call_us": 40}, "Bound by bandwidth"),
    ],
)
def test_it_names_the_longest_lane(values, said):
    assert said in words(DRAW(**values))
