"""The bar shows the library's plan, and says so where nothing starts."""

import re

import pytest

from kvlib.catalog import gpu, model
from kvlib.memory_plan import plan_capacity
from kvlib.overheads import GIB
from kvlib.plan_interval import plan_range
from kvlib.show.drawings.memory_budget import memory_budget

DEFAULTS = {
    "name": "Llama-3-8B",
    "card": "RTX 4090",
    "num_gpus": 1,
    "share": 92,
    "step": 8192,
    "context": 4096,
    "inside": True,
    "small": False,
}


def words(svg):
    return " ".join(re.sub(r"<[^>]*>", " ", svg).split())


def picture(**changes):
    return memory_budget(**DEFAULTS | changes)


def test_the_figures_are_those_of_the_plan():
    plan, svg = plan_capacity(model("Llama-3-8B"), gpu("RTX 4090")), picture()
    assert f">{plan.concurrency(4096):.1f} sequences of 4,096 tokens at once<" in svg
    for part in ("weight", "activation", "graph", "runtime", "kv", "free"):
        assert f">{plan.parts()[part] / GIB:.2f} GiB<" in svg


def test_an_8_bit_cache_holds_twice_as_many():
    held = [float(re.search(r">([\d.]+) sequences", picture(small=s))[1]) for s in (False, True)]
    assert held[1] == pytest.approx(2 * held[0], abs=0.15)


def test_all_of_a_card_starts_only_if_the_graphs_are_in_the_share():
    assert "It does not start" not in picture(share=100)
    assert "It does not start" in picture(share=100, inside=False)
    assert "The share is" in picture(share=50) and "It does not start" in picture(share=50)


def test_less_than_one_sequence_is_said_to_be_none():
    assert "not even one" in picture(context=131072) and "not even one" not in picture()


def test_the_ends_and_a_context_the_model_was_not_published_for_are_said():
    plans = plan_range(model("Llama-3-8B"), gpu("H100 SXM5"))
    low, _, high = (f"{plan.concurrency(4096):.1f}" for plan in plans.values())
    assert f"at its worst: {low}; at its best: {high}" in words(picture(card="H100 SXM5"))
    assert "published for 8,192 tokens" in words(picture(context=16384))
    assert "published for" not in words(picture(context=8192))
    assert "published for" not in words(picture(name="Qwen3-8B", context=32768))
