"""Rows that grow: by doubling, inside `plan`, with every copied byte counted and nothing lost."""

import pytest
import torch

from kvlib.ledger import ContiguousLedger, grown_len
from kvlib.plan import SequenceTooLong
from kvlib.sizes import KVShape
from kvlib.tensors.contiguous import ContiguousKVCache

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=2)
PER_TOKEN = SHAPE.bytes_per_token("float32")


def growing(**changes):
    sizes = {"num_seqs": 1, "max_seq_len": 64, "initial_seq_len": 2}
    return ContiguousKVCache(SHAPE, **{**sizes, **changes})


def append(cache, seq_id, num_tokens, value=1.0):
    k = torch.full((num_tokens, 1, 2), value)
    with cache.step({seq_id: [0] * num_tokens}) as plan:
        for layer in range(2):
            cache.write(layer, k, -k, plan)


@pytest.mark.parametrize("growth", [1.01, 1.5, 2.0, 4.0])
def test_rows_grow_to_what_is_needed_and_never_beyond_the_maximum(growth):
    row_len = 3
    for needed in range(1, 101):
        longer = grown_len(row_len, needed, 100, growth)
        assert needed <= longer <= 100
        assert longer == row_len if needed <= row_len else longer > row_len
        row_len = longer


def test_one_token_after_the_other_copies_less_than_doubling_promises():
    """Rows of 2, 4, 8, 16, 32, 64: 2 + 4 + 8 + 16 + 32 tokens are copied on the way to 64."""
    cache = growing()
    cache.add("a")
    for _ in range(64):
        append(cache, "a", 1)
    assert cache.row_len == 64
    assert cache.counters.bytes_copied == (2 + 4 + 8 + 16 + 32) * PER_TOKEN
    assert cache.counters.bytes_written == 64 * PER_TOKEN
    assert cache.counters.blocks_allocated == 1  # the row is the same, only longer


def test_a_single_growth_keeps_each_layer_where_it_belongs():
    """Layers, tokens and widths of 2, filled 0 to 7: growing from 2 slots to 4 moves no layer."""
    cache = growing()
    cache.add("a")
    numbered = torch.arange(8.0).reshape(2, 2, 1, 2)
    with cache.step({"a": [0, 0]}) as plan:
        for layer in range(2):
            cache.write(layer, numbered[layer], numbered[layer], plan)
    append(cache, "a", 1, value=99.0)
    assert cache.row_len == 4
    for layer in range(2):
        kept, _ = cache.store.view(layer, 0, 2)
        assert kept.flatten().tolist() == numbered[layer].flatten().tolist()


def test_old_and_new_rows_exist_at_once():
    cache = growing(num_seqs=3)
    for seq_id in "ab":
        cache.add(seq_id)
    append(cache, "a", 2)
    append(cache, "b", 1)
    assert cache.peak_nbytes == cache.nbytes == 3 * 2 * PER_TOKEN
    append(cache, "b", 2)
    assert cache.nbytes == 3 * 4 * PER_TOKEN
    assert cache.peak_nbytes == 3 * (2 + 4) * PER_TOKEN
    assert cache.counters.bytes_copied == (2 + 1) * PER_TOKEN


@pytest.mark.parametrize(
    "growth, lengths", [(1.01, [2, 3, 4, 5, 6]), (1.5, [2, 3, 5, 8]), (3.0, [2, 6])]
)
def test_rows_grow_by_the_factor_even_by_a_single_slot(growth, lengths):
    """A neighbour's only token moves each time, too, and everybody keeps what was written."""
    cache = growing(num_seqs=2, growth=growth)
    cache.add("a")
    cache.add("b")
    append(cache, "b", 1, value=-1.0)
    seen = []
    for n in range(6):
        append(cache, "a", 1, value=float(n))
        cache.check()
        if cache.row_len not in seen:
            seen.append(cache.row_len)
    assert seen == lengths
    assert cache.counters.bytes_copied == sum(n + 1 for n in lengths[:-1]) * PER_TOKEN
    assert cache.store.view(1, 0, 6)[0][0, :, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert cache.store.view(1, 1, 1)[0].flatten().tolist() == [-1.0, -1.0]


def test_growth_skips_lengths_that_would_not_do():
    cache = growing()
    cache.add("a")
    append(cache, "a", 9)
    assert cache.row_len == 16
    assert cache.counters.bytes_copied == 0


def test_a_plan_older_than_the_growth_can_only_be_aborted():
    cache = growing(num_seqs=2)
    cache.add("a")
    cache.add("b")
    old = cache.plan({"a": [1, 2]})
    append(cache, "b", 3)
    k = torch.ones(2, 1, 2)
    for use in (
        lambda: cache.write(0, k, k, old),
        lambda: cache.attend(0, k, old),
        lambda: cache.commit(old),
    ):
        with pytest.raises(ValueError, match="older than the last growth"):
            use()
    assert cache.length("a") == 0
    cache.abort(old)
    append(cache, "a", 2)
    assert (cache.length("a"), cache.length("b")) == (2, 3)
    cache.check()


def test_a_write_beyond_the_maximum_grows_nothing():
    cache = growing(max_seq_len=8)
    cache.add("a")
    append(cache, "a", 2)
    with pytest.raises(SequenceTooLong, match="7 more tokens after 2: 9 > max_seq_len 8"):
        append(cache, "a", 7)
    assert (cache.row_len, cache.length("a"), cache.counters.bytes_copied) == (2, 2, 0)
    append(cache, "a", 6)
    assert cache.length("a") == cache.row_len == 8


def test_without_memory_for_longer_rows_nothing_changes(monkeypatch):
    cache = growing(num_seqs=2)
    cache.add("a")
    append(cache, "a", 2, value=5.0)

    def no_memory(row_len):
        raise torch.OutOfMemoryError(f"no memory for rows of {row_len}")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_new_store", no_memory)
        with pytest.raises(torch.OutOfMemoryError, match="rows of 4"):
            append(cache, "a", 1)
    assert (cache.row_len, cache.length("a"), cache.counters.bytes_copied) == (2, 2, 0)
    append(cache, "a", 1)
    assert cache.store.view(1, 0, 3)[0].tolist() == [[[5.0, 5.0], [5.0, 5.0], [1.0, 1.0]]]


def test_the_ledger_alone_grows_as_the_cache_does():
    """A scheduler that only counts sees the same slots."""
    ledger = ContiguousLedger(2, 16, initial_seq_len=2)
    ledger.add("a")
    ledger.add("b")
    assert ledger.plan({"b": [1, 2]}).slot_mapping == (2, 3)
    step = ledger.plan({"a": [1, 2, 3]})
    assert (ledger.row_len, step.block_size, step.slot_mapping) == (4, 4, (0, 1, 2))
    assert ledger.reserved_tokens == 8
    ledger.check()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"initial_seq_len": 65}, "initial_seq_len 65 > max_seq_len 64"),
        ({"initial_seq_len": 0}, "initial_seq_len must be at least 1"),
        ({"growth": 1.0}, "finite factor above 1, got 1.0"),
        ({"growth": float("inf")}, "finite factor above 1, got inf"),
        ({"growth": float("nan")}, "finite factor above 1, got nan"),
    ],
)
def test_growth_that_could_not_work_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        growing(**changes)
