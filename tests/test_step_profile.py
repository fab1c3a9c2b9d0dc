"""A step's parts have names while they are watched, and cost nothing more while they are timed."""

from pathlib import Path

import pytest
import torch

from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig

CONFIG = LlamaConfig(
    vocab_size=97,
    hidden_size=24,
    intermediate_size=40,
    num_layers=2,
    num_q_heads=6,
    num_kv_heads=2,
    head_dim=8,
)
NAMES = {"attention", "write", "head"}


@pytest.fixture
def step_profile(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "measure")
    import step_profile

    return step_profile


def test_parts_are_named_only_while_they_are_watched(step_profile):
    model = Llama.random(CONFIG, seed=0)
    run = step_profile.stepper(model, step_profile.ByLayer, 1, 1, 15)
    with pytest.raises(KeyError), step_profile.watched(model):
        named = step_profile.parts(run)["shares"]
        raise KeyError
    plain = step_profile.parts(run)["shares"]
    assert set(named) >= NAMES | {"products", "small operators", "Python"}
    assert sum(named.values()) == pytest.approx(1, abs=0.02)
    assert not NAMES & set(plain)


def test_by_layer_a_paged_cache_gives_what_it_gives_in_one_call(step_profile):
    model = Llama.random(CONFIG, seed=0)
    logits = []
    for kind in (step_profile.ByLayer, step_profile.kvlib.PagedKVCache):
        cache = kind(model.kv_shape, 2, 16)
        cache.add("a")
        with cache.step({"a": [0] * 20}) as plan:
            logits.append(model(torch.arange(20), cache, plan))
    torch.testing.assert_close(*logits)


def test_the_head_meets_the_last_token_of_a_prompt_only(step_profile):
    model = Llama.random(CONFIG, seed=0)
    rows = []
    model._logits = lambda x: rows.append(len(x))
    step_profile.stepper(model, step_profile.ByLayer, 1, 40, 0)()
    assert rows == [1]
