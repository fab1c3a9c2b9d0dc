"""The eviction budget: rules of the library over the weights of one real head."""

import importlib.util
from pathlib import Path

import pytest

from kvlib.show.drawings import find
from kvlib.show.drawings.eviction_budget import RULES, held, lost_share, recorded

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = find("eviction_budget").controls["budget"].values


@pytest.mark.parametrize("asked", ["with it", "later"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_each_step_holds_the_newest_and_nothing_comes_back(rule, budget, asked):
    steps = held(rule, budget, asked)
    words, _, _, num_context = recorded()
    assert len(steps) == len(words)
    for token, (before, kept) in enumerate(zip(((), *steps), steps, strict=False)):
        assert token in kept and list(kept) == sorted(set(kept))
        assert set(kept) <= {*before, token}
    later = rule == "SnapKV" and asked == "later"
    assert len(steps[-1]) == budget + (len(words) - num_context if later else 0)


def test_only_snapkv_asks_when_the_question_comes():
    for rule in ("sinks", "H2O"):
        assert held(rule, 16, "with it") == held(rule, 16, "later")
    assert lost_share("SnapKV", 16, "with it") < 0.1 < 0.5 < lost_share("SnapKV", 16, "later")


def test_the_weights_are_shares_and_the_number_has_most_of_the_last_row():
    words, weights, number, _ = recorded()
    for token, row in enumerate(weights):
        assert len(row) == token + 1 and sum(row) == pytest.approx(1)
    assert "".join(words[at] for at in number) == "7391"
    assert sum(weights[-1][at] for at in number) > 0.55


def test_the_picture_says_whether_the_number_is_held():
    strip = find("eviction_budget")
    assert "4 of 4 digits are held. 3 % of the last" in strip(rule="SnapKV", budget=16)
    assert "0 of 4 digits are held. 61 %" in strip(rule="SnapKV", budget=16, asked="later")
    assert "0 of 4 digits are held. 68 %" in strip(rule="H2O", budget=24)
    assert "4 of 4 digits are held." in strip(rule="sinks", budget=24)


@pytest.mark.model
def test_the_weights_are_those_of_the_model(real_model):
    spec = importlib.util.spec_from_file_location("rows", ROOT / "tools" / "needle_rows.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    model, tokenizer = real_model
    _, weights, number, num_context = recorded()
    context = tokenizer.encode(tool.CONTEXT)
    assert len(context) == num_context
    found = tool.rows_of_the_finder(model, context + tokenizer.encode(tool.QUESTION), number)
    for row, expected in zip(found["weights"], weights, strict=True):
        assert row == pytest.approx([1000 * weight for weight in expected], abs=5)
