"""Faults people really shipped, put into every exact cache: each makes the named check fail."""

import pytest
import torch

from conftest import small_config
from exact_caches import EXACT, poison
from kvlib.block_table import BlockTable
from kvlib.ledger import ContiguousLedger
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged_context import PagedContext
from kvlib.tensors.step import NoCache
from kvlib.tensors.store import KVStore

TEXTS = {"a": [5, 1, 4, 1, 5, 9, 2], "b": [2, 7, 1, 8]}


def shared_place(patch):
    """All sequences own the first row, or blocks, as rows of a batch did in the outline's class."""
    take, right = ContiguousLedger._take, BlockTable.block_ids.fget

    def shared(self, seq_id):
        take(self, seq_id)
        self._rows[seq_id] = 0

    patch.setattr(ContiguousLedger, "_take", shared)
    patch.setattr(BlockTable, "block_ids", property(lambda t: tuple(range(len(right(t))))))
    patch.setattr(BlockTable, "slots", lambda table, first, end: range(first, end))


def lengths_read(patch, change):
    """Attention takes `change(length, size)` for the number of stored tokens, in rows of `size`."""
    view, rows_of, spans = KVStore.view, PagedContext.rows_of, PagedContext.spans
    patch.setattr(
        KVStore, "view", lambda s, layer, row, n: view(s, layer, row, change(n, s.block_size))
    )

    def wrong_rows(context, window):
        rows = rows_of(context, window).clone()
        size = context.host.block_size
        for i, end in enumerate(rows[2].tolist()):
            rows[2, i] = change(end, -(-end // size) * size)
        return rows

    def wrong_spans(context, window):
        for s, rows, first, end in spans(context, window):
            size = context.host.block_size
            yield s, rows, first, change(end, -(-end // size) * size)

    patch.setattr(PagedContext, "rows_of", wrong_rows)
    patch.setattr(PagedContext, "spans", wrong_spans)


def length_short_by_one(patch):
    lengths_read(patch, lambda length, size: max(length - 1, 0))


def length_long_by_one(patch):
    lengths_read(patch, lambda length, size: min(length + 1, size))


def unmasked_tail(patch):
    """Attention sees the whole row, or block, written or not."""
    lengths_read(patch, lambda length, size: size)


def missing_value_write(patch):
    """Keys arrive and values do not."""
    write = KVStore.write

    def keys_only(self, layer, slots, k, v, **options):
        kept = self.values.clone()
        write(self, layer, slots, k, v, **options)
        self.values.copy_(kept)

    patch.setattr(KVStore, "write", keys_only)


def growth_that_forgets(patch):
    """Longer rows arrive without what the old ones held."""
    copy = KVStore.copy_block

    def forgets(self, src, dst, num_tokens, *, source=None):
        return copy(self, src, dst, num_tokens) if source is None else 0

    patch.setattr(KVStore, "copy_block", forgets)


MUTANTS = {
    made.__name__: made
    for made in (
        shared_place,
        length_short_by_one,
        length_long_by_one,
        unmasked_tail,
        missing_value_write,
    )
}


def forward(model, cache, new):
    tokens = torch.tensor([t for ts in new.values() for t in ts])
    with cache.step(new) as plan:
        return model(tokens, cache, plan)


def two_texts_continue_as_if_alone(model, cache):
    """Two sequences in turns, prefill and decode, against each text computed without a cache."""
    got = {}
    for seq_id, text in TEXTS.items():
        cache.add(seq_id)
        got[seq_id] = forward(model, cache, {seq_id: text[:2]})[0]
    for i in range(2, 4):
        both = forward(model, cache, {s: [text[i]] for s, text in TEXTS.items()})
        got = dict(zip(TEXTS, both, strict=True))
    got["a"] = forward(model, cache, {"a": TEXTS["a"][4:]})[0]
    for seq_id, text in TEXTS.items():
        alone = NoCache()
        alone.add("x")
        expected = forward(model, alone, {"x": text})[0]
        torch.testing.assert_close(got[seq_id], expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def model():
    return Llama.random(small_config(), seed=1)


@pytest.mark.parametrize("cache", EXACT)
def test_the_check_passes_on_what_is_right(model, cache):
    two_texts_continue_as_if_alone(model, poison(EXACT[cache](model.kv_shape)))


@pytest.mark.parametrize("cache", EXACT)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_killed(model, cache, mutant, monkeypatch):
    monkeypatch.setattr(model, "one_call", False)  # the kernel writes by itself
    MUTANTS[mutant](monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        two_texts_continue_as_if_alone(model, poison(EXACT[cache](model.kv_shape)))


@pytest.mark.parametrize("cache", ["growing", "aligned"])
def test_growth_that_forgets_is_killed(model, cache, monkeypatch):
    growth_that_forgets(monkeypatch)
    with pytest.raises(AssertionError):
        two_texts_continue_as_if_alone(model, poison(EXACT[cache](model.kv_shape)))


@pytest.mark.model
@pytest.mark.parametrize("cache", EXACT)
def test_the_real_model_generates_the_same_tokens_from_every_cache(real_model, cache):
    from kvlib.tensors.generate import generate

    model, tokenizer = real_model
    prompt = tokenizer.encode("A cache is")
    made = poison(EXACT[cache](model.kv_shape, num_seqs=1, max_seq_len=24))
    cached = generate(model, prompt, 10, cache=made)
    naive = generate(model, prompt, 10)
    assert cached.agrees_with(naive)
    assert cached.work.tokens_forwarded == len(prompt) + 9 < naive.work.tokens_forwarded
