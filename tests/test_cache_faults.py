"""Copies that fail in the middle of what a cache does: each fault that was found, by itself."""

import pytest
import torch

from kvlib.precision import Precision
from kvlib.sizes import KVShape
from kvlib.tensors.contiguous import AlignedKVCache, ContiguousKVCache
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.overwrites import Overwrites
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.sink_window import RollingKVCache, SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache
from kvlib.tensors.step import NoCache
from kvlib.tensors.store import KVStore

SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=4)


def numbers(num_tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, num_tokens, 2, 4, generator=generator)


def serve(cache, seq_id, num_tokens, seed=0):
    x = numbers(num_tokens, seed)
    with cache.step({seq_id: [0] * num_tokens}) as plan:
        for layer in range(2):
            cache.write(layer, x[layer], -x[layer], plan)
            cache.attend(layer, x[layer], plan)


class Refused(Exception):
    pass


def failing(monkeypatch, owner, name, after):
    """Lets a method do its work so often and then fail for good."""
    real, left = getattr(owner, name), [after]

    def fails(*args, **options):
        if not left[0]:
            raise Refused
        left[0] -= 1
        return real(*args, **options)

    monkeypatch.setattr(owner, name, fails)


def row(cache, seq_id):
    return cache.store.keys[:, cache.ledger.row(seq_id), :, : cache.length(seq_id)].clone()


ROWS = {
    "contiguous": lambda: ContiguousKVCache(SHAPE, 3, 8),
    "aligned": lambda: AlignedKVCache(SHAPE, 3, 8, row_alignment_bytes=64),
}


@pytest.mark.parametrize("made", ROWS)
def test_a_fork_whose_copy_fails_has_made_no_child(made, monkeypatch):
    cache = ROWS[made]()
    cache.add("a")
    serve(cache, "a", 5)
    failing(monkeypatch, KVStore, "copy_block", after=0)
    with pytest.raises(Refused):
        cache.fork("a", "b")
    assert cache.ledger.seq_ids == ("a",) and cache.ledger.num_free == 2
    monkeypatch.undo()
    cache.check()
    cache.fork("a", "b")
    assert torch.equal(row(cache, "b"), row(cache, "a"))


@pytest.mark.parametrize("made", ROWS)
@pytest.mark.parametrize("after", [0, 1])
def test_beams_whose_copies_fail_are_as_they_were_the_dropped_ones_too(made, after, monkeypatch):
    cache = ROWS[made]()
    for i, seq_id in enumerate("abc"):
        cache.add(seq_id)
        serve(cache, seq_id, 4 + i, seed=i)
    held = {s: row(cache, s) for s in "abc"}
    failing(monkeypatch, KVStore, "copy_block", after)
    with pytest.raises(Refused):
        cache.reorder(dict.fromkeys("abc", "a"))
    monkeypatch.undo()
    assert all(torch.equal(row(cache, s), held[s]) for s in "abc")
    cache.check()
    cache.reorder(dict.fromkeys("abc", "a"))
    assert all(torch.equal(row(cache, s), held["a"]) for s in "abc")


LOSSY = {
    "a ring": lambda: RollingKVCache(SHAPE, 1, window=4),
    "sinks": lambda: SinkWindowKVCache(SHAPE, 1, sinks=1, window=3),
    "heavy hitters": lambda: HeavyHitterKVCache(SHAPE, 1, budget=4, recent=1),
    "snap": lambda: SnapKVCache(SHAPE, 1, budget=4, observe=1, kernel=1),
}


def all_held(cache):
    """Everything that a later step will look at."""
    length = getattr(cache.ledger, "num_held", lambda s: len(cache.ledger.held(s)))("a")
    beside = [getattr(cache, name, None) for name in ("_scores", "_held_positions")]
    sides = (cache.store.keys, cache.store.values, *beside)
    return [side[:, 0, :, :length].tolist() for side in sides if side is not None]


@pytest.mark.parametrize("made", LOSSY)
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_commit_that_fails_has_written_over_nothing(made, after, monkeypatch):
    """Old tokens make room for new ones at the commit, side by side and layer by layer."""
    cache = LOSSY[made]()
    cache.add("a")
    for i in range(6):
        serve(cache, "a", 1, seed=i)
    held = all_held(cache)
    failing(monkeypatch, Overwrites, "put", after)
    if made == "snap" and after > 1:  # of an answer it notes positions alone, in two layers
        return
    with pytest.raises(Refused):
        serve(cache, "a", 1, seed=9)
    monkeypatch.undo()
    assert all_held(cache) == held and cache.length("a") == 6
    cache.check()
    twin = LOSSY[made]()
    twin.add("a")
    serve(cache, "a", 1, seed=9)
    for i in (*range(6), 9):
        serve(twin, "a", 1, seed=i)
    assert all_held(cache) == all_held(twin)


def codes(num_seqs=2):
    formats = {"keys": Precision(8, along="channel"), "values": Precision(8)}
    return QuantizedKVCache(SHAPE, 8, 4, num_seqs=num_seqs, way="dequantize", **formats)


def whole(cache, seq_id):
    return [side.tolist() for layer in range(2) for side in cache.read(seq_id, layer)]


def commit_over_a_full_row(cache):
    serve(cache, "a", 9, seed=2)


CHANGES = {
    "commit": commit_over_a_full_row,
    "truncate into a block of codes": lambda cache: cache.truncate("a", 2),
    "fork": lambda cache: cache.fork("a", "c"),
    "reorder": lambda cache: cache.reorder({"a": "b", "b": "b"}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("after", [0, 1])
def test_a_row_of_full_precision_is_as_it_was_if_anything_fails(change, after, monkeypatch):
    cache = codes(num_seqs=3)
    for i, seq_id in enumerate("ab"):
        cache.add(seq_id)
        serve(cache, seq_id, 6 + i, seed=i)
    held = {s: whole(cache, s) for s in "ab"}
    failing(monkeypatch, Overwrites, "put", after)
    with pytest.raises(Refused):
        CHANGES[change](cache)
    monkeypatch.undo()
    assert {s: whole(cache, s) for s in cache.ledger.seq_ids} == held and cache.can_add()
    cache.check()
    CHANGES[change](cache)
    cache.check()
    assert whole(cache, "a") != held["a"] or change == "fork"


STAGED = {**LOSSY, "codes": codes}


@pytest.mark.parametrize("made", STAGED)
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (0, (3, 1, 4)),
        (0, (3, 2, 1)),
        (0, (1, 2, 4)),
        (0, (2, 2, 4)),
        (2, (3, 2, 4)),
        (-1, (3, 2, 4)),
    ],
)
def test_what_would_be_spread_over_heads_or_another_layer_is_refused_at_once(made, layer, shape):
    """Numbers that are put in place later would be broadcast there, without a word."""
    cache = STAGED[made]()
    cache.add("a")
    plan = cache.plan({"a": [0] * 3})
    x = torch.ones(shape)
    with pytest.raises(ValueError, match=r"must be|layers are"):
        cache.write(layer, x, x, plan)
    cache.abort(plan)
    cache.check()


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_counted_from_the_end_is_no_layer(layer):
    cache = ROWS["contiguous"]()
    cache.add("a")
    x = torch.ones(1, 2, 4)
    plan = cache.plan({"a": [0]})
    with pytest.raises(ValueError, match=f"layers are 0 to 1, asked for {layer}"):
        cache.write(layer, x, x, plan)
    with pytest.raises(ValueError, match="layers are 0 to 1"):
        cache.attend(layer, x, plan)


def test_what_is_written_over_comes_back_in_the_right_order():
    held = torch.arange(6.0)
    with pytest.raises(Refused), Overwrites() as over:
        over.put(held, slice(0, 3), 7.0)
        over.put(held, torch.tensor([2, 4]), torch.tensor([8.0, 9.0]))
        raise Refused
    assert held.tolist() == [0, 1, 2, 3, 4, 5]
    with Overwrites() as over:
        over.put(held, slice(0, 3), 7.0)
    assert held.tolist() == [7, 7, 7, 3, 4, 5]


def test_checks_notice_a_store_that_is_not_the_ledgers():
    for made in (*ROWS.values(), *LOSSY.values()):
        cache = made()
        cache.check()
        cache.store = KVStore(2, 1, 2, 2, 4)
        with pytest.raises(AssertionError, match="store is not ledger"):
            cache.check()


def test_checks_notice_what_a_step_left_behind():
    for made in LOSSY.values():
        cache = made()
        cache._fresh[99] = {}
        with pytest.raises(AssertionError, match="noted of 1 steps that are over"):
            cache.check()


def test_checks_notice_keys_and_values_in_one_place():
    cache = ROWS["contiguous"]()
    cache.store.values = cache.store.keys
    with pytest.raises(AssertionError, match="share their bytes"):
        cache.check()
    cache = codes()
    cache.codes.sides = (cache.codes.sides[0],) * 2
    with pytest.raises(AssertionError, match="share their bytes"):
        cache.check()


def test_checks_notice_a_head_that_holds_a_token_twice():
    cache = LOSSY["heavy hitters"]()
    cache.add("a")
    serve(cache, "a", 3)
    cache._held_positions[1, 0, 1, 2] = 0
    with pytest.raises(AssertionError, match="holds a token twice"):
        cache.check()


def test_nobody_attends_to_the_keys_of_another_step():
    """Without a cache two open steps have one place for what was written last."""
    cache = NoCache()
    steps = [cache.plan({"a": [0] * 2}), cache.plan({"b": [0] * 2})]
    for layer, step in ((0, steps[0]), (0, steps[1])):
        cache.write(layer, *numbers(2)[:2], step)
    for layer, step in ((0, steps[0]), (1, steps[1])):
        with pytest.raises(ValueError, match=f"{layer} was not written"):
            cache.attend(layer, numbers(2)[0], step)
    assert cache.attend(0, numbers(2)[0], steps[1]).shape == (2, 2, 4)
    cache.check()


@pytest.mark.parametrize("made", LOSSY)
def test_attention_to_what_was_not_written_is_refused(made):
    cache = LOSSY[made]()
    cache.add("a")
    plan = cache.plan({"a": [0]})
    cache.write(0, *numbers(1)[:2], plan)
    with pytest.raises(ValueError, match="1 was not written"):
        cache.attend(1, numbers(1)[0], plan)
