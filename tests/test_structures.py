"""The measurement of chapter 4's table: the pass that stands for decoding decodes alike."""

import importlib
from pathlib import Path

import pytest
import torch

from kvlib.tensors.top_blocks import TopBlocksKVCache

ROOT = Path(__file__).resolve().parents[1]
TEXT = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6]


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    return importlib.import_module


@pytest.mark.parametrize("options", [{}, {"first_blocks": 1}, {"dense_layers": 1}])
@pytest.mark.parametrize("top_k", [2, 4])
@pytest.mark.parametrize("start", [1, 8])
def test_one_pass_chooses_as_decoding_does(load, small_model, top_k, start, options):
    few = load("few_blocks")
    place = {"device": small_model.device}
    cache = TopBlocksKVCache(small_model.kv_shape, 16, 3, top_k=top_k, **options, **place)
    cache.add("a")
    rows = []
    for new in (TEXT[:start], *([token] for token in TEXT[start:])):
        with cache.step({"a": new}) as plan:
            ids = torch.tensor(new, device=small_model.device)
            rows.append(small_model(ids, cache, plan, all_logits=True))
    one_pass = few.FewBlocks(3, top_k, exact_until=start, **options, **place)
    got = few.read_text(small_model, TEXT, one_pass)
    torch.testing.assert_close(got, torch.cat(rows), rtol=1e-5, atol=1e-5)


def test_shares_are_shares_and_promises_are_kept(load, small_model):
    few = load("few_blocks")
    for rule in few.RULES:
        cache = few.FewBlocks(3, 2, rule, exact_until=6, device=small_model.device)
        few.read_text(small_model, TEXT, cache)
        found = cache.found
        assert found["queries"] == 17 * 6 * 2
        assert 0 < found["read"] <= found["queries"] and found["best"] <= found["queries"]
        if rule == "bound":
            assert found["promised"] <= found["read"] and found["sure"] <= found["best"]


def test_every_block_read_is_everything_read(load, small_model):
    few = load("few_blocks")
    exact = few.read_text(small_model, TEXT, few.FewBlocks(3, 8, device=small_model.device))
    cache = few.FewBlocks(3, 8, exact_until=5, device=small_model.device)
    got = few.compared(small_model, TEXT, cache, exact)
    assert got["error"] < 1e-4
    assert got["read"] == got["best"] == got["sure"] == got["promised"] == 1


def test_lines_are_counted_as_the_house_counts_them(load, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    lines, house = load("structure_lines"), load("test_house")
    path = ROOT / "kvlib" / "tensors" / "contiguous.py"
    whole = lines.code_lines(path)
    assert whole == house.code_lines(path)
    row, aligned = (lines.code_lines(path, [n]) for n in ("ContiguousKVCache", "AlignedKVCache"))
    assert 0 < aligned < row < whole
    with pytest.raises(ValueError, match="has no \\['Contiguous'\\]"):
        lines.code_lines(path, ["Contiguous"])
    table = load("structure_table")
    assert set(lines.SOURCES) == set(table.makers(table.KVShape(1, 1, 2), 1, 16))
    assert all(lines.lines_of(name) > 50 for name in lines.SOURCES)


def test_a_padded_table_has_one_shape_and_a_growing_view_as_many_as_steps(load):
    table, shapes = load("structure_table"), load("structure_shapes")
    made = table.makers(table.KVShape(1, 3, 64), 1, 1024)
    assert shapes.shapes_of(made["contiguous"], 464, fixed=False) == 32
    assert shapes.shapes_of(made["blocked"], 464, fixed=True) == 1
    assert shapes.shapes_of(made["reads few blocks"], 464, fixed=True) == 1


def test_a_step_that_chooses_moves_what_the_formula_says(load):
    """Contexts 465 to 480: 7 full blocks and 1 to 16 tokens, 30 extremes, half of 8.5 keys."""
    table = load("structure_table")
    make = table.makers(table.KVShape(1, 3, 64), 2, 512)["reads few blocks"]
    expected = {"written": 2.0, "read": 7 * 16 + 8.5 + 30 + 8.5 / 2, "copied": 0.0}
    assert table.traffic(make) == expected
    assert table.forked(make) == 8


def test_what_waits_is_told_from_what_does_not_and_from_what_fails(load, monkeypatch):
    table, shapes = load("structure_table"), load("structure_shapes")

    def waits(name):
        return shapes.waits(lambda shape, on: table.makers(shape, 1, 512, device=on)[name]())

    assert not any(map(waits, table.makers(table.KVShape(1, 1, 2), 1, 16)))
    attend = TopBlocksKVCache.attend

    def looks(self, layer, q, plan):
        q.sum().item()
        return attend(self, layer, q, plan)

    def fails(self, layer, q, plan):
        raise RuntimeError("power cut")

    monkeypatch.setattr(TopBlocksKVCache, "attend", looks)
    assert waits("reads few blocks")
    monkeypatch.setattr(TopBlocksKVCache, "attend", fails)
    with pytest.raises(RuntimeError, match="power cut"):
        waits("reads few blocks")
