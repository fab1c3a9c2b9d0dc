"""What heads that choose for themselves share: weights, gathering, and a commit that needs all."""

import pytest
import torch

from kvlib.tensors.attention import causal_mask, reference_attention
from kvlib.tensors.per_head import attention_weights, gather, spans
from lossy_cases import SHAPE, Text, heavy_hitters, held, snap


def test_weights_in_the_open_give_the_attention_of_the_reference():
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(n, h, 8, generator=generator) for n, h in ((3, 6), (7, 2), (7, 2)))
    parts = k[:4].transpose(0, 1), k[4:].transpose(0, 1)
    weights = attention_weights(q, parts, causal_mask(3, 7))
    assert weights.shape == (2, 3, 3, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 3))
    assert (weights[..., 0, 5:] == 0).all() and (weights[..., 2, :] > 0).all()
    out = (weights @ v.transpose(0, 1)[:, None]).permute(2, 0, 1, 3).flatten(1, 2)
    expected, _ = reference_attention(q, k, v)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_each_head_gathers_its_own_tokens():
    side = torch.arange(12.0).reshape(2, 3, 2)
    picked = gather(side, torch.tensor([[2, 0], [1, 1]]))
    assert picked.tolist() == [[[4, 5], [0, 1]], [[8, 9], [8, 9]]]


@pytest.mark.parametrize("make", [heavy_hitters, snap])
def test_a_layer_that_did_not_attend_did_not_choose(make):
    text, cache = Text(9), make()
    cache.add("a")
    plan = cache.plan({"a": [0] * 9})
    with pytest.raises(ValueError, match="attend follows write in every layer: 0 was not written"):
        cache.attend(0, text.q[0], plan)
    cache.write(0, text.k[0], text.v[0], plan)
    with pytest.raises(ValueError, match="attend follows write in every layer: 1 was not written"):
        cache.attend(1, text.q[1], plan)
    cache.attend(0, text.q[0], plan)
    with pytest.raises(ValueError, match="asked to commit 2 layers, 1 have attended"):
        cache.commit(plan)
    assert cache.length("a") == 0
    text.attend(cache, plan, slice(0, 9))
    cache.commit(plan)
    assert cache.length("a") == 9
    for call in (cache.commit, cache.abort):
        with pytest.raises(ValueError, match="this plan is not open"):
            call(plan)


@pytest.mark.parametrize("make", [heavy_hitters, snap])
def test_heads_and_layers_choose_apart(make):
    cache = make(num_seqs=1)
    cache.add("a")
    list(Text(14).steps(cache, [14]))
    choices = [tuple(head) for layer in held(cache) for head in layer]
    assert len(set(choices)) > 1
    # No token that one head has given up is free: another head still holds it.
    assert len({at for head in choices for at in head}) > cache.ledger.budget


def test_a_step_of_no_tokens_changes_nothing():
    cache = heavy_hitters()
    cache.add("a")
    with cache.step({"a": []}) as plan:
        assert spans(plan) == [("a", slice(0, 0))]
    assert cache.length("a") == 0 and held(cache) == [[[], []]] * SHAPE.num_layers


@pytest.mark.parametrize("make", [heavy_hitters, snap])
def test_a_step_whose_commit_fails_leaves_no_plan_open(make):
    cache = make()
    cache.add("a")
    with pytest.raises(ValueError, match="every layer chooses"), cache.step({"a": [0] * 9}):
        pass
    assert cache.length("a") == 0
    cache.abort(cache.plan({"a": [0] * 3}))
    cache.free("a")
    cache.check()
