"""Users by rates that are known beforehand, and whose users cannot be counted."""

import pytest

from kvlib import catalog, fleet
from kvlib.fleet import rate_within, users
from kvlib.memory_plan import plan_capacity
from kvlib.plan_interval import Interval, plan_range
from kvlib.serving_run import Target

LLAMA, H100, A10 = catalog.model("Llama-3-8B"), catalog.gpu("H100 SXM5"), catalog.gpu("A10")
PLAN = plan_capacity(LLAMA, A10, max_batched_tokens=2048)
SOON = Target(ttft_s=0.5, tpot_s=0.01)


@pytest.fixture
def rated(monkeypatch):
    """Rates by efficiency and seed, and what they were asked with."""
    rates, asked = {0.4: (3, 1, 2), 0.6: (4, 9, 6), 0.8: (7, 12, 11)}, []

    def rate(plan, model, gpu, target, *, seed, efficiency, guess, **others):
        asked.append((seed, efficiency, guess, others))
        return rates[efficiency][seed]

    monkeypatch.setattr(fleet, "rate_within", rate)
    return asked


def test_users_take_the_worst_of_the_worst_and_the_best_of_the_best(rated):
    plans = dict.fromkeys(("low", "likely", "high"), PLAN)
    assert users(plans, LLAMA, A10, SOON, every_s=10, share=0.5) == (10, 60, 120)
    guesses = {0.4: 6, 0.6: 1, 0.8: 12}  # from the best likely rate, by speed
    assert rated == [
        (seed, speed, pytest.approx(guesses[speed]), {"share": 0.5})
        for speed in (0.6, 0.4, 0.8)
        for seed in (0, 1, 2)
    ]
    assert users(plans, LLAMA, A10, SOON) == (60, 360, 720)
    assert users(plans, LLAMA, A10, SOON, seeds=(1,), every_s=1) == (1, 9, 12)


def test_a_plan_that_holds_nothing_serves_nobody(rated):
    plans = dict.fromkeys(("low", "likely", "high"), PLAN)
    assert users(plans | {"low": None}, LLAMA, A10, SOON, every_s=1) == (0, 6, 12)
    none = users(dict.fromkeys(plans), LLAMA, A10, SOON)
    assert none == (0, 0, 0) and isinstance(none, Interval)
    del rated[:]
    assert users(plans | {"likely": None}, LLAMA, A10, SOON, every_s=1, seeds=(0,)) == (3, 0, 7)
    assert [guess for *_, guess, _ in rated] == pytest.approx([0.4 / 0.6, 0.8 / 0.6])
    for wrong in ({"every_s": 0}, {"every_s": float("inf")}, {"every_s": -5}, {"seeds": ()}):
        with pytest.raises(ValueError, match="needs a seed and every_s above 0"):
            users(plans, LLAMA, A10, SOON, **wrong)


@pytest.mark.parametrize(
    "name, why",
    [
        ("Gemma-2-9B", "has 21 layers that keep a window only: memory and clock count every"),
        ("DeepSeek-V3", "caches a latent: the clock counts the operations of whole heads"),
    ],
)
def test_a_model_whose_users_cannot_be_counted_is_refused_with_the_reason(name, why):
    model = catalog.model(name)
    plans = plan_range(model, H100, num_gpus=8, weight_dtype="int4")
    assert plans["likely"]
    with pytest.raises(ValueError, match=f"^{name} {why}"):
        rate_within(plans["likely"], model, H100, SOON)
    with pytest.raises(ValueError, match=f"^{name} {why}"):
        users(dict.fromkeys(plans), model, H100, SOON)  # also where nothing fits
