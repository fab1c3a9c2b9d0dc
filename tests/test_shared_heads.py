"""`measure/shared_heads.py` changes what it says and nothing else."""

import importlib
from pathlib import Path

import pytest
import torch

from conftest import small_config
from kvlib.sizes import KVShape
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.generate import generate
from kvlib.tensors.llama import Llama
from kvlib.tensors.sampling import Sampling
from kvlib.tensors.step import NoCache

ROOT = Path(__file__).resolve().parents[1]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    return importlib.import_module("shared_heads")


@pytest.fixture
def model():
    return Llama.random(small_config(num_q_heads=6, num_kv_heads=3, num_layers=4), seed=3)


def logits(model, cache=None):
    cache = cache or NoCache()
    cache.add("a")
    with cache.step({"a": TOKENS}) as plan:
        return model(torch.tensor(TOKENS), cache, plan, all_logits=True)


def heads_of(model, layer, side):
    config = model.config
    weight = getattr(model.model.layers[layer].self_attn, side).weight
    return weight.view(config.num_kv_heads, config.head_dim, -1)


def test_merged_heads_are_the_mean_in_the_layers_asked_for_and_only_there(script, model):
    changed = script.merged(model, [1], ("v_proj",))
    old, new = (heads_of(each, 1, "v_proj") for each in (model, changed))
    torch.testing.assert_close(new, old.mean(0).expand_as(new))
    assert torch.equal(heads_of(changed, 1, "k_proj"), heads_of(model, 1, "k_proj"))
    assert torch.equal(heads_of(changed, 0, "v_proj"), heads_of(model, 0, "v_proj"))


@pytest.mark.parametrize("head", [0, 2])
def test_one_head_can_stand_for_all(script, model, head):
    new = heads_of(script.merged(model, range(4), head=head), 3, "k_proj")
    assert torch.equal(new, heads_of(model, 3, "k_proj")[head].expand_as(new))


def test_heads_in_another_order_are_the_same_model(script, model):
    changed = script.reordered(model)
    assert not torch.equal(heads_of(changed, 0, "k_proj"), heads_of(model, 0, "k_proj"))
    torch.testing.assert_close(logits(changed), logits(model), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(script.merged(model, [0])), logits(model), atol=1e-2)


def cache_of(num_layers):
    return ContiguousKVCache(KVShape(num_layers, 3, small_config().head_dim), 1, 16)


def test_layers_that_share_read_their_home_and_keep_nothing(script, model):
    homes = [0, 0, 2, 2]
    shared = script.SharedLayers(homes, cache_of)
    assert shared.nbytes == cache_of(2).nbytes == cache_of(4).nbytes // 2
    wrong = model.model.layers[1].self_attn.k_proj
    before = logits(model, shared)
    with torch.no_grad():
        wrong.weight.add_(1.0)
    assert torch.equal(logits(model, script.SharedLayers(homes, cache_of)), before)
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.add_(1.0)
    assert not torch.equal(logits(model, script.SharedLayers(homes, cache_of)), before)


def test_nobody_shares_is_the_model_itself(script, model):
    alone = logits(model, script.SharedLayers([0, 1, 2, 3], cache_of))
    torch.testing.assert_close(alone, logits(model, cache_of(4)), rtol=0, atol=0)


@pytest.mark.parametrize("homes", [[1, 1], [0, 0, 1], [0, 2, 1]])
def test_a_home_stands_before_those_that_read_it(script, homes):
    with pytest.raises(ValueError, match="reads itself or an owner before it"):
        script.SharedLayers(homes, cache_of)


def test_a_latent_as_wide_as_keys_and_values_changes_nothing_and_a_narrow_one_has_its_rank(
    script, model
):
    config = model.config
    width = 2 * config.num_kv_heads * config.head_dim
    read = script.inputs_of_attention(model, TOKENS)
    assert len(read) == config.num_layers and read[0].shape == (len(TOKENS), config.hidden_size)
    for inputs in (None, read):
        whole = script.squeezed(model, width, script.directions(model, inputs))
        torch.testing.assert_close(logits(whole), logits(model), rtol=1e-3, atol=1e-3)
        narrow = (
            script.squeezed(model, 2, script.directions(model, inputs)).model.layers[0].self_attn
        )
        both = torch.cat([narrow.k_proj.weight, narrow.v_proj.weight]).double()
        assert (torch.linalg.svdvals(both) > 1e-4).sum() == 2


def test_a_latent_made_for_a_text_rebuilds_its_keys_and_values_better(script, model):
    read = script.inputs_of_attention(model, TOKENS)

    def error(changed):
        old, new = (m.model.layers[0].self_attn for m in (model, changed))
        gaps = (getattr(new, side).weight - getattr(old, side).weight for side in script.SIDES)
        return sum((gap @ read[0].T).square().sum().item() for gap in gaps)

    with torch.no_grad():
        ways = (script.directions(model, inputs) for inputs in (None, read))
        blind, seen = (error(script.squeezed(model, 4, along)) for along in ways)
    assert seen < 0.9 * blind


def test_texts_written_together_are_those_written_alone(script, model, monkeypatch):
    monkeypatch.setattr(script, "WRITTEN_TOKENS", 12)

    class Reader:
        def encode(self, text):
            return [7, 8]

    together = script.written(model, Reader(), [5, 6])
    alone = [
        generate(model, [7, 8], 10, sampling=Sampling(temperature=1.0, seed=s)) for s in (5, 6)
    ]
    assert together == [[7, 8, *run.tokens] for run in alone]
    assert together[0] != together[1]


class Noted:
    """Stands for `Trials`: keeps what is tried and runs nothing."""

    def __init__(self, model):
        self.model, self.rows = model, []

    def add(self, name, share, model=None, homes=None):
        self.rows.append((name, share, model, homes))


def kept(model):
    """The share of a model's key and value heads that differ from those before in their layer."""
    sides = [
        heads_of(model, layer, side)
        for layer in range(model.config.num_layers)
        for side in ("k_proj", "v_proj")
    ]
    return sum(len(torch.unique(heads, dim=0)) for heads in sides) / sum(map(len, sides))


def test_every_trial_says_the_share_of_the_bytes_it_keeps(script) -> None:
    thirty = Llama.random(small_config(num_q_heads=6, num_kv_heads=3, num_layers=30), seed=3)
    noted = Noted(thirty)
    script.heads_and_layers(noted)
    for name, share, changed, homes in noted.rows:
        found = len(set(homes)) / 30 if homes else kept(changed)
        assert share == pytest.approx(found), name
        assert (
            not homes
            or script.SharedLayers(homes, cache_of).nbytes == cache_of(len(set(homes))).nbytes
        )
    assert len({name for name, *_ in noted.rows}) == len(noted.rows) == 12


def test_every_latent_has_the_rank_and_the_share_it_says(script, model, monkeypatch) -> None:
    monkeypatch.setattr(script, "RANKS", (5, 2))
    noted = Noted(model)
    script.latents(noted, [TOKENS, TOKENS[::-1]])
    width = 2 * model.config.num_kv_heads * model.config.head_dim
    for name, share, changed, _ in noted.rows:
        rank = int((torch.linalg.svdvals(script.keys_and_values(changed, 1)) > 1e-4).sum())
        assert name.startswith(f"latent of {rank},") and share == rank / width
    assert len({name for name, *_ in noted.rows}) == 6
