"""What giving up tokens costs: the masks stand for evictions, and the record for the real model."""

import importlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlib import measured
from kvlib.eviction import LRUPolicy
from kvlib.ledger import ContiguousLedger
from kvlib.tensors.attention import causal_mask, contiguous_attention
from kvlib.tensors.sink_window import RollingKVCache
from kvlib.tensors.step import DevicePlan, NoCache

TOKENS = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.fixture
def script(monkeypatch, request):
    monkeypatch.syspath_prepend(str(measured.FOLDER.parents[1] / "measure"))
    return importlib.import_module(request.param)


kept = pytest.mark.parametrize("script", ["kept"], indirect=True)


@kept
@pytest.mark.parametrize("budget", [1, 3, 7, 20])
def test_with_nothing_kept_always_a_budget_is_a_window(script, budget):
    assert torch.equal(script.keep(9, budget), causal_mask(9, 9, window=budget))


@kept
def test_a_mask_is_what_a_policy_with_pins_holds(script):
    @given(st.integers(2, 9), st.sets(st.integers(0, 11), max_size=4))
    def holds(budget, always):
        budget += len(always)
        policy = LRUPolicy()
        for step, row in enumerate(script.keep(12, budget, always).tolist()):
            if len(policy) == budget:
                policy.evict()
            policy.add(step)
            if step in always:
                policy.pin(step)
            held = [token for token in range(12) if token in policy]
            assert held == [token for token in range(12) if row[token]]
            for token in held:
                policy.touch(token)

    holds()


@kept
def test_a_token_has_room_for_itself(script):
    with pytest.raises(ValueError, match="4 tokens kept always leave no room in 4"):
        script.keep(9, 4, range(4))
    assert script.keep(4, 4, range(4)).sum() == 10


@kept
@pytest.mark.parametrize("window", [1, 4, 12])
def test_a_recency_mask_is_a_rolling_cache(script, small_model, small_shape, window):
    rolling = RollingKVCache(small_shape, 1, window, device=small_model.device)
    mask = script.keep(12, window).to(small_model.device)
    got, expected = (
        script.losses(small_model, TOKENS, cache) for cache in (script.Kept(mask), rolling)
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


class Evicting(NoCache):
    """Reads one token a step, and really drops what LRU with pins gives up, in every layer."""

    def __init__(self, budget, always, device):
        super().__init__(device)
        self.ledger, self.rows = ContiguousLedger(1, len(TOKENS)), {}
        self.budget, self.always = budget, always

    def add(self, seq_id):
        self.ledger.add(seq_id)

    def plan(self, new):
        return DevicePlan.of(self.ledger.plan(new), self.device)

    def commit(self, plan):
        self.ledger.commit(plan.host)

    def write(self, layer, k, v, plan):
        rows = self.rows.setdefault(layer, {})
        if len(rows) == self.budget:
            del rows[min(rows.keys() - self.always)]
        rows[int(plan.positions[0])] = k[0], v[0]

    def attend(self, layer, q, plan):
        k, v = (torch.stack(side, dim=1) for side in zip(*self.rows[layer].values(), strict=True))
        return contiguous_attention(q, k, v)


@kept
@pytest.mark.parametrize("always", [{0}, {0, 1, 2}, {2, 3}])
def test_one_pass_under_a_mask_is_a_cache_that_evicts_token_by_token(script, small_model, always):
    budget, ids = 5, torch.tensor(TOKENS, device=small_model.device)
    cache, logits = Evicting(budget, always, small_model.device), []
    cache.add("text")
    for step, token in enumerate(TOKENS):
        with cache.step({"text": [token]}) as plan:
            logits.append(small_model(ids[step : step + 1], cache, plan, all_logits=True))
    expected = torch.nn.functional.cross_entropy(torch.cat(logits)[:-1], ids[1:], reduction="none")
    mask = script.keep(len(TOKENS), budget, always).to(small_model.device)
    got = script.losses(small_model, TOKENS, script.Kept(mask))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@kept
def test_a_mask_that_hides_nothing_changes_nothing(script, small_model):
    plain = script.losses(small_model, TOKENS, NoCache(small_model.device))
    found = script.perplexity_with(small_model, TOKENS, script.keep(12, 12))
    assert found == script.perplexity(plain)
    assert found != script.perplexity_with(small_model, TOKENS, script.keep(12, 3))


@pytest.mark.model
@pytest.mark.parametrize("script", ["eviction_loss"], indirect=True)
def test_the_real_model_cannot_spare_its_first_tokens(script, real_model):
    """The whole text, and a budget of 32, as the record has them."""
    record = measured.load("eviction_loss.cpu")["data"]
    found = script.measured_at(*real_model, budgets=(32,))
    assert found["text"] == record["text"]
    assert found["whole"] == pytest.approx(record["whole"], rel=0.01)
    row = found["perplexity"][0]
    assert row == pytest.approx(record["perplexity"][0], rel=0.01)
    assert row["recent"] > 2 * row["first_4_and_recent"] > 2 * found["whole"]
    assert row["next_4_and_recent"] > row["recent"]
