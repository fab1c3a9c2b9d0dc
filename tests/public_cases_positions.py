"""Public cases about positions: pads on the left, tokens that went, windows by layer, no keys."""

import math

import pytest
import torch

from conftest import small_config
from exact_caches import EXACT
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.paged_ledger import PagedLedger
from kvlib.radix import RadixTree
from kvlib.rolling_ledger import RollingLedger
from kvlib.sizes import KVShape
from kvlib.tensors.attention import causal_mask
from kvlib.tensors.attention_parts import partial_attention
from kvlib.tensors.hf_groups import groups
from kvlib.tensors.hf_rows import real_columns
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.seen_attention import seen_attention
from kvlib.tensors.step import NoCache
from public_cases import case
from public_cases_prefix import begin, serve

ONE = KVShape(num_layers=1, num_kv_heads=1, head_dim=2)


@case("LP-1")
def rows_of_a_padded_batch_have_positions_of_their_own():
    """Pads are never stored: each row counts its own tokens, and reads as it would alone."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    ids = torch.tensor([[0, 0, 7, 3, 5], [4, 8, 2, 6, 9]])
    real = real_columns(mask, [0, 0], columns=0, num_new=5, windows=False)
    assert real.sum(1).tolist() == [3, 5]
    rows = {name: row[kept].tolist() for name, row, kept in zip("ab", ids, real, strict=True)}
    model = Llama.random(small_config(), seed=1)
    for make in EXACT.values():
        cache = make(model.kv_shape)
        for name in rows:
            cache.add(name)
        for new in (rows, {"a": [1], "b": [2]}):
            with cache.step(new) as plan:
                logits = model(
                    torch.tensor([t for part in new.values() for t in part]), cache, plan
                )
        assert plan.host.positions == (3, 5)
        for row, (name, last) in enumerate((("a", 1), ("b", 2))):
            alone = NoCache()
            with alone.step({name: [*rows[name], last]}) as plan:
                expected = model(torch.tensor([*rows[name], last]), alone, plan)
            torch.testing.assert_close(logits[row], expected[0], rtol=1e-4, atol=1e-4)


@case("PE-3")
def what_goes_is_known_by_its_position():
    """Blocks of one token that lie in the order 5, 6, 7, 0, 1: those from position 6 on go."""
    ledger = PagedLedger(num_blocks=8, block_size=1)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": [0] * 8}))
    table = ledger._tables["a"]
    table._blocks = [3, 4, 5, 6, 7, 0, 1, 2]  # position p lies in block _blocks[p]
    ledger.truncate("a", 6)
    assert ledger.table("a") == (3, 4, 5, 6, 7, 0)
    assert {block for block in range(8) if ledger.pool.ref_count(block) == 0} == {1, 2}
    ledger.check()
    ring = RollingLedger(num_seqs=1, window=3, sinks=2)
    ring.add("a")
    ring.commit(ring.plan({"a": [0] * 8}))
    assert dict(zip(ring.held_slots("a"), ring.held("a"), strict=True)) == {
        0: 0,
        1: 1,
        2: 5,
        3: 6,
        4: 7,
    }
    with pytest.raises(ValueError, match="gone, so it cannot go back to 6"):
        ring.truncate("a", 6)  # the next query would see position 4, which was overwritten
    ring.truncate("a", 7)
    assert ring.held("a") == [0, 1, 5, 6]


@case("PE-4")
def only_an_equal_beginning_is_used_again_and_nothing_is_moved_or_lost():
    """Kept keys keep their positions, so the chunks behind a change are computed afresh."""
    for index in (HashIndex, RadixTree):
        memory = KVMemory(20, 1, index)
        old, new = [ord(c) for c in "abcdefghj"], [ord(c) for c in "abefhj"]
        serve(memory, old)
        job = begin(memory, new)
        assert job.num_cached == 2
        positions = {chr(token): at for at, token in enumerate(new)}
        assert positions == {"a": 0, "b": 1, "e": 2, "f": 3, "h": 4, "j": 5}
        memory.stop(job)
        assert len(memory.prefixes.find(TokenContent(old, 1), 9)) == 9
        assert len(memory.prefixes.find(TokenContent(new, 1), 6)) == 6


@case("SW-7")
def a_window_that_no_layer_uses_is_none():
    class Config:
        sliding_window, num_attention_heads, hidden_size = 512, 2, 4
        num_key_value_heads = 1

    made = []

    def make(shape, window, layers):
        made.append((shape.num_layers, window))
        return PagedKVCache(shape, 40, 16, window=window)

    [group] = groups(Config(), ["full_attention"] * 26, make)
    assert made == [(26, None)] and group.window is None
    cache = group.cache
    cache.add("a")
    v = torch.arange(600.0)[:, None, None].expand(-1, 1, 2).contiguous()
    with cache.step({"a": [0] * 600}) as plan:
        for layer in range(26):
            cache.write(layer, torch.zeros_like(v), v, plan)
        out = cache.attend(25, torch.zeros(600, 2, 2), plan)
    assert out[-1, 0, 0].item() == pytest.approx(299.5)  # 343.5 if the first 88 were hidden
    shape = KVShape(26, 1, 2, window=512, num_local_layers=0)
    assert shape.bytes_per_sequence(600, "float32") == 600 * 26 * 2 * 2 * 4
    with pytest.raises(ValueError, match="needs num_local_layers"):
        KVShape(26, 1, 2, window=512)


@case("EM-4")
def what_is_hidden_has_no_weight_whatever_stands_for_minus_infinity():
    """Masks here are true or false; a finite floor would average what a query must not see."""
    q, k = torch.zeros(2, 1, 1), torch.zeros(1, 3, 1)
    v = torch.tensor([0.0, 1.0, 2.0]).reshape(1, 3, 1)
    out, lse = seen_attention(q, k, v, torch.tensor([3, 0]))
    assert out.flatten().tolist() == pytest.approx([1.0, 0.0]) and lse[1].item() == -math.inf
    out, lse = partial_attention(q, k, v, first=5, position=0, window=None)
    assert out.flatten().tolist() == [0.0, 0.0] and (lse == -math.inf).all()
    assert causal_mask(2, 3).dtype == torch.bool
