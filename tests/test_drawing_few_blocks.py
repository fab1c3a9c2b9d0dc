"""The few-blocks picture: recorded scores of a real model, and rules that choose among them."""

import importlib
from pathlib import Path

import pytest

from kvlib.show.drawings import find
from kvlib.show.drawings.few_blocks import HEADS, QUERIES, RULES, blocks, chosen, recorded

ROOT = Path(__file__).resolve().parents[1]
SIZES = (4, 8, 16)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("size", SIZES)
def test_bounds_bound_and_averages_do_not(head, query, size):
    seen = blocks(head, query, size)
    assert sum(block.tokens for block in seen) == query + 1
    assert sum(block.share for block in seen) == pytest.approx(1)
    for block in seen:
        assert block.average <= block.best <= block.bound
    assert any(block.average < block.best - 0.1 for block in seen)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("top_k", [1, 2, 4, 16, 40])
def test_the_last_block_is_among_so_many(rule, top_k):
    seen = blocks("far", 127, 8)
    read = chosen(rule, top_k, seen)
    assert read == sorted(set(read)) and len(read) == min(top_k, 16)
    assert read[-1] == 15
    if rule == "bound" and 1 < top_k < 16:
        left = [block.best for number, block in enumerate(seen) if number not in read]
        assert max(left) <= min(seen[number].bound for number in read[:-1])


def test_the_first_token_is_found_by_the_bound_and_hidden_by_the_average():
    """Bytes: 8 + 2 tokens and 13 pairs of extremes, of 98."""
    picture = find("few_blocks")
    asked = {"head": "first", "query": 97, "block_size": 8}
    found = picture(**asked, top_k=2)
    assert "Read: 2 of 13 blocks, 10 tokens" in found and "23 % of the bytes, 94 %" in found
    hidden = picture(**asked, top_k=8, rule="average")
    assert "not among them" in hidden and "4 % of the attention" in hidden
    assert "Everything is read" in picture(**asked, top_k=16)
    assert "100 % of the bytes, 100 % of the attention" in picture(**asked, top_k=16)


def test_a_proof_is_rare():
    picture = find("few_blocks")
    assert "bounds prove it" in picture(head="near", query=127, block_size=4, top_k=6)
    assert "bounds cannot prove it" in picture(head="far", query=127, block_size=8, top_k=8)
    assert "prove" not in picture(head="far", rule="newest", top_k=2)


@pytest.mark.model
def test_the_record_is_that_of_the_model(real_model, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    script = importlib.import_module("query_blocks")
    model, tokenizer = real_model
    text = (script.DATA / "passage.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text.strip())[: script.NUM_TOKENS]
    record = recorded()
    assert [tokenizer.decode([token]) for token in tokens] == record["tokens"]
    for head, by_query in script.rows(model, tokens).items():
        for query, row in by_query.items():
            for name, expected in record["rows"][head][query].items():
                assert row[name] == pytest.approx(expected, abs=3)
