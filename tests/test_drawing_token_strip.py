"""The token strip: real policies over token positions, real weights over what they keep."""

import importlib.util
from pathlib import Path

import pytest

from kvlib.show.drawings import find
from kvlib.show.drawings.token_strip import NUM_TOKENS, POLICIES, SINKS, held, lost_share, recorded

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = find("token_strip").controls["budget"].values


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_what_is_kept_by_each_policy(policy, budget):
    for step, kept in enumerate(held(policy, budget)):
        if step < budget:
            assert kept == tuple(range(step + 1))
            continue
        recent = tuple(range(step + 1))
        assert (
            kept
            == {
                "LRU": recent[-budget:],
                "LFU": (*recent[: budget - 1], step),
                "sinks": recent[:SINKS] + recent[SINKS:][-(budget - SINKS) :],
            }[policy]
        )


@pytest.mark.parametrize("budget", BUDGETS)
def test_recency_gives_up_half_of_the_attention_with_the_first_token(budget):
    for step in range(budget, NUM_TOKENS):
        assert lost_share("LRU", budget, step) > 0.4
        assert lost_share("sinks", budget, step) < lost_share("LRU", budget, step) - 0.3


def test_weights_of_a_row_are_shares():
    words, weights = recorded()
    assert len(words) == len(weights) == NUM_TOKENS
    for token, row in enumerate(weights):
        assert len(row) == token + 1 and min(row) > 0
        assert sum(row) == pytest.approx(1)


def test_the_picture_says_what_is_lost():
    strip = find("token_strip")
    assert "Nothing has been given up yet" in strip(step=7)
    assert "get 62 % of the attention.<" in strip(step=8)
    assert "of the attention, token 0 alone 51 %." in strip()
    assert "token 0 alone" not in strip(policy="sinks")
    assert "Kept now: 0, 1, 2, 3, 17, 18, 19, 20." in strip(policy="sinks")


@pytest.mark.model
def test_the_weights_are_those_of_the_model(real_model):
    spec = importlib.util.spec_from_file_location("rows", ROOT / "tools" / "attention_rows.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    model, tokenizer = real_model
    tokens = tokenizer.encode((tool.DATA / "passage.txt").read_text(encoding="utf-8"))
    got = tool.mean_weights(model, tokens[:NUM_TOKENS])
    words, weights = recorded()
    assert words == tuple(tokenizer.decode([token]).strip() for token in tokens[:NUM_TOKENS])
    for row, expected in zip(got, weights, strict=True):
        assert row == pytest.approx([1000 * weight for weight in expected], abs=3)
