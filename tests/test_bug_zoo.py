"""The bug zoo: each mutant of the page is killed by a test that passes on the library as it is.

The mutants are cells of chapters/03_paged/bug_zoo.ipynb, run from there, so that the page and these
tests cannot differ.
"""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from conftest import small_config
from exact_caches import fill
from kvlib.block_table import BlockTable
from kvlib.paged_ledger import PagedLedger
from kvlib.sizes import KVShape
from kvlib.tensors.caches import SlotCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache, PagedPlan
from kvlib.tensors.step import NoCache

PAGE = Path(__file__).resolve().parents[1] / "chapters/03_paged/bug_zoo.ipynb"
CELLS = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
LONG, OTHER = [5, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 3]
NAN, SIGN = float("nan"), 77.0


def zoo():
    """The mutants by name, each a function that returns its patch; the rest of the page stays."""
    page = {}
    for cell in CELLS:
        source = "".join(cell["source"])
        if source.startswith(("from dataclasses", "ZOO = {}", "@mutant(")):
            exec(compile(source, "bug_zoo.ipynb", "exec"), page)
    return page["ZOO"]


ZOO = zoo()


@pytest.fixture(scope="module")
def model():
    return Llama.random(small_config(), seed=1)


def cache_of(shape, num_blocks=8, content=NAN, **options):
    """A cache in blocks of four whose free slots hold something."""
    cache = PagedKVCache(shape, num_blocks, 4, way="gather", **options)
    fill(cache.store, content)
    return cache


def forward(model, cache, new):
    tokens = torch.tensor([token for tokens in new.values() for token in tokens])
    with cache.step(new) as plan:
        return model(tokens, cache, plan)


def feed(model, cache, **texts):
    for name, text in texts.items():
        cache.add(name)
        forward(model, cache, {name: text})


def require_as_if_alone(model, got, text):
    alone = NoCache()
    expected = forward(model, alone, {"x": text})[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def attend_last(keys, values, num_q_heads=None, **options):
    """One layer: stores keys and values [T, Hkv, D], then the output of the last token's query."""
    _, num_kv_heads, head_dim = keys.shape
    cache = cache_of(KVShape(1, num_kv_heads, head_dim), **options)
    cache.add("a")
    with cache.step({"a": [0] * (len(keys) - 1)}) as plan:
        cache.write(0, keys[:-1], values[:-1], plan)
    with cache.step({"a": [0]}) as plan:
        cache.write(0, keys[-1:], values[-1:], plan)
        return cache.attend(0, torch.ones(1, num_q_heads or num_kv_heads, head_dim), plan)[0]


def test_a_name_that_comes_back_reads_its_new_blocks(model):
    cache = cache_of(model.kv_shape)
    feed(model, cache, a=LONG)
    cache.free("a")
    feed(model, cache, b=LONG[3:], a=OTHER[:3])
    got = forward(model, cache, {"a": OTHER[3:]})[0]
    require_as_if_alone(model, got, OTHER)


def test_a_leaver_gives_up_its_own_references_only(model):
    ledger = PagedLedger(num_blocks=4, block_size=4)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": LONG}))
    ledger.fork("a", "b")
    ledger.free("b")
    assert [ledger.pool.ref_count(block) for block in ledger.table("a")] == [1, 1]
    ledger.check()


def test_padding_writes_into_the_null_block_only(model):
    cache = cache_of(model.kv_shape, num_blocks=2, content=SIGN)
    cache.add("a")
    with cache.step({"a": [5]}) as plan:
        host = plan.host.pad(3, 2, cache.ledger.pool.null_block_id)
        model(torch.tensor([5, 0, 0]), cache, PagedPlan.of(host, cache.device))
    usable = cache.store.keys[:, :2]
    assert (usable == SIGN).all(dim=(0, 2, 4)).flatten().tolist() == [False] + [True] * 7


def test_each_row_of_a_batch_reads_its_own_table(model):
    cache = cache_of(model.kv_shape)
    feed(model, cache, a=LONG[:5], b=OTHER[:4])
    got = forward(model, cache, {"b": OTHER[4:], "a": LONG[5:]})
    require_as_if_alone(model, got[0], OTHER)
    require_as_if_alone(model, got[1], LONG)


def test_a_prompt_over_a_boundary_is_where_its_table_says(model):
    ledger = PagedLedger(num_blocks=4, block_size=4)
    ledger.add("a")
    step = ledger.plan({"a": LONG[:6]})
    table = step.block_table[0]
    assert list(step.slot_mapping) == [table[p // 4] * 4 + p % 4 for p in range(6)]


def test_a_fork_writes_into_its_own_copy(model):
    ledger = PagedLedger(num_blocks=4, block_size=4)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": LONG[:6]}))
    ledger.fork("a", "b")
    step = ledger.plan({"a": [11], "b": [12]})
    assert len(set(step.slot_mapping)) == 2


def test_a_copy_brings_every_token_of_the_block(model):
    """A is the first to write, so it is a that copies."""
    cache = cache_of(model.kv_shape)
    feed(model, cache, a=LONG[:6])
    cache.fork("a", "b")
    got = forward(model, cache, {"a": [11], "b": [12]})
    require_as_if_alone(model, got[0], [*LONG[:6], 11])


def test_a_shared_beginning_ends_where_it_was_cut(model):
    cache = cache_of(model.kv_shape)
    feed(model, cache, a=LONG)
    cache.fork("a", "b")
    cache.truncate("b", 6)
    assert cache.length("b") == 6
    require_as_if_alone(model, forward(model, cache, {"b": [11, 12]})[0], [*LONG[:6], 11, 12])


def test_a_full_hit_leaves_the_last_token_to_compute(model):
    cache = cache_of(model.kv_shape)
    feed(model, cache, a=LONG, b=OTHER)
    cache.fork("b", "hit")
    cache.truncate("hit", len(OTHER) - 1)
    new = {"a": [11], "hit": OTHER[cache.length("hit") :]}
    require_as_if_alone(model, forward(model, cache, new)[1], OTHER)


def test_query_heads_read_the_kv_head_of_their_group(model):
    values = torch.arange(3.0)[None, :, None].expand(2, 3, 2)
    out = attend_last(torch.ones(2, 3, 2), values, num_q_heads=6)
    assert out[:, 0].round().tolist() == [0, 0, 1, 1, 2, 2]


def test_the_free_part_of_a_block_is_never_read(model):
    out = attend_last(torch.ones(6, 1, 2), torch.ones(6, 1, 2), content=NAN)
    assert out.isfinite().all()


def test_a_window_counts_the_query_itself(model):
    values = torch.arange(8.0)[:, None, None].expand(8, 1, 2)
    out = attend_last(torch.zeros(8, 1, 2), values, window=4)
    torch.testing.assert_close(out, torch.full((1, 2), 5.5))


def test_a_zero_key_is_a_token_like_any_other(model):
    """Free slots are zero here, as whoever counts what is not zero would like them."""
    keys = torch.tensor([[1.0, -1.0], [0.0, 0.0], [1.0, -1.0]])[:, None]
    values = torch.tensor([1.0, 2.0, 6.0])[:, None, None].expand(3, 1, 2)
    out = attend_last(keys, values, content=0.0)
    torch.testing.assert_close(out, torch.full((1, 2), 3.0))


KILLED_BY = {
    "stale_mapping": test_a_name_that_comes_back_reads_its_new_blocks,
    "double_free": test_a_leaver_gives_up_its_own_references_only,
    "slot_minus_one": test_padding_writes_into_the_null_block_only,
    "batch_row": test_each_row_of_a_batch_reads_its_own_table,
    "boundary_off_by_one": test_a_prompt_over_a_boundary_is_where_its_table_says,
    "written_without_copy": test_a_fork_writes_into_its_own_copy,
    "copy_one_short": test_a_copy_brings_every_token_of_the_block,
    "partial_block_shared": test_a_shared_beginning_ends_where_it_was_cut,
    "missing_last_token": test_a_full_hit_leaves_the_last_token_to_compute,
    "wrong_gqa_map": test_query_heads_read_the_kv_head_of_their_group,
    "unmasked_tail": test_the_free_part_of_a_block_is_never_read,
    "window_off_by_one": test_a_window_counts_the_query_itself,
    "lengths_from_values": test_a_zero_key_is_a_token_like_any_other,
}


@pytest.mark.parametrize("name", ZOO)
def test_a_mutant_is_killed_by_the_test_named_for_it(model, name):
    with ZOO[name](), pytest.raises(AssertionError):
        KILLED_BY[name](model)
    KILLED_BY[name](model)  # and the library is whole again


def test_every_mutant_has_its_test_and_its_row_in_the_index():
    assert len(ZOO) >= 12 and ZOO.keys() == KILLED_BY.keys()
    words = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    rows = [line for line in words.splitlines() if line.startswith("| ") and "`test_" in line]
    assert [row.split("`")[-2] for row in rows] == [test.__name__ for test in KILLED_BY.values()]
    assert all(words.count(f"`{test.__name__}`") == 2 for test in KILLED_BY.values())


def first_copy_only(right, cache, copies):
    right(cache, copies[:1])


def window_two_too_early(right, table, position):
    right(table, position + 2)


def test_a_step_with_two_copies_makes_both(model):
    cache = cache_of(model.kv_shape)
    feed(model, cache, a=LONG[:6])
    for child in "bc":
        cache.fork("a", child)
    got = forward(model, cache, {"a": [11], "b": [12], "c": [13]})
    for row, token in zip(got, (11, 12, 13), strict=True):
        require_as_if_alone(model, row, [*LONG[:6], token])


def test_a_window_keeps_the_block_of_its_oldest_token(model):
    for num_tokens in range(5, 13):
        values = torch.arange(float(num_tokens))[:, None, None].expand(num_tokens, 1, 2)
        out = attend_last(torch.zeros(num_tokens, 1, 2), values, window=4)
        torch.testing.assert_close(out, torch.full((1, 2), num_tokens - 2.5))


@pytest.mark.parametrize(
    "owner, name, wrong, killer",
    [
        (SlotCache, "_copy", first_copy_only, test_a_step_with_two_copies_makes_both),
        (
            BlockTable,
            "drop_before",
            window_two_too_early,
            test_a_window_keeps_the_block_of_its_oldest_token,
        ),
    ],
)
def test_the_answers_to_the_open_exercise_survive_the_thirteen(model, owner, name, wrong, killer):
    right = getattr(owner, name)
    with patch.object(owner, name, lambda *args: wrong(right, *args)):
        for test in KILLED_BY.values():
            test(model)
        with pytest.raises(AssertionError):
            killer(model)
