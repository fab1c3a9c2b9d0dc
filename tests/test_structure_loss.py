"""The rules of `measure/structure_loss.py` keep what they say, and all keep equally much."""

import importlib
from itertools import pairwise
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    return importlib.import_module("structure_loss")


def test_the_oldest_go_first(script):
    mask = script.held_by(6, 3, script.spare((), 3))
    window = torch.ones(6, 6).tril().triu(-2).bool()
    assert torch.equal(mask, window)


@pytest.mark.parametrize("sinks", [0, 2])
def test_every_rule_holds_its_budget_and_nothing_comes_back(script, sinks):
    spared = {1, 4, 5, 6, 11}
    mask = script.held_by(24, 8, script.spare(spared, 8, sinks))
    assert mask.sum(1).tolist() == [min(i + 1, 8) for i in range(24)]
    assert not mask.triu(1).any()
    for before, after in pairwise(mask):
        assert not (after & ~before)[: int(before.nonzero().max()) + 1].any()


def test_spared_tokens_outlive_the_others_until_half_of_the_slots_are_theirs(script):
    spared = {1, 4, 5, 6, 11}
    last = script.held_by(24, 8, script.spare(spared, 8))[-1].nonzero().flatten().tolist()
    # Five are spared, half of eight is four: the oldest of them went.
    assert last == [4, 5, 6, 11, 20, 21, 22, 23]


def test_the_first_tokens_never_go(script):
    last = script.held_by(24, 8, script.spare({4, 5, 6, 11}, 8, sinks=2))[-1]
    assert last.nonzero().flatten().tolist() == [0, 1, 6, 11, 20, 21, 22, 23]


def test_structure_is_imports_and_the_heads_of_functions_and_classes(script):
    source = (
        "import os\n\n\nclass A:\n    x = 1\n\n    def f(\n        self,\n    ):\n        y = 2"
    )
    assert script.structure_lines(source) == {1, 4, 7, 8, 9}


def test_random_lines_have_as_many_tokens_as_they_replace(script):
    sizes = {line: 3 + line % 4 for line in range(40)}
    chosen = script.random_lines(sizes, range(10, 40), 50, seed=0)
    total = sum(sizes[line] for line in chosen)
    assert 50 <= total < 50 + max(sizes.values()) and min(chosen) >= 10
    assert chosen == script.random_lines(sizes, range(10, 40), 50, seed=0)
    assert chosen != script.random_lines(sizes, range(10, 40), 50, seed=1)


def test_equal_losses_differ_by_nothing(script):
    losses = torch.rand(640)
    assert script.compare(losses, losses) == {"mean": 0.0, "low": 0.0, "high": 0.0}
    gap = script.compare(losses + 0.5, losses)
    assert gap["low"] == gap["high"] == pytest.approx(0.5, abs=1e-3)
