"""Exact caches under a model: right slots, right lengths, nothing but what was written.

Each test that takes `new_cache` runs on every one of them: contiguous, growing, aligned, paged.
One that takes `new_rows` is about rows, which a paged cache has not.
"""

import pytest
import torch

from exact_caches import EXACT, ROWS, contiguous, fill, poison
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.sizes import KVShape
from kvlib.tensors.attention import reference_attention
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.sink_window import RollingKVCache
from kvlib.tensors.step import NoCache


@pytest.fixture(params=EXACT)
def new_cache(request):
    return EXACT[request.param]


@pytest.fixture(params=ROWS)
def new_rows(request):
    return ROWS[request.param]


def is_rows(cache):
    """A fork of rows copies them at once; blocks are shared and copied when written."""
    return isinstance(cache, ContiguousKVCache)


def slots(cache, seq_id, num_tokens):
    """The slots of the first tokens of a sequence, in rows as in blocks."""
    ledger = cache.ledger
    table = (ledger.row(seq_id),) if is_rows(cache) else ledger.table(seq_id)
    size = cache.store.block_size
    return [table[p // size] * size + p % size for p in range(num_tokens)]


def forward(model, cache, new, **options):
    """One committed step: logits of the packed tokens."""
    tokens = torch.tensor([t for ts in new.values() for t in ts], device=model.device)
    with cache.step(new) as plan:
        return model(tokens, cache, plan, **options)


def whole(model, tokens):
    """The logits after every token of one text, computed without any cache."""
    cache = NoCache(model.device)
    cache.add("x")
    return forward(model, cache, {"x": tokens}, all_logits=True)


A, B = [5, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8]


@pytest.mark.parametrize("chunks", [[7], [1] * 7, [3, 2, 2], [6, 1]])
def test_any_chunking_gives_the_logits_of_the_whole_text(
    new_cache, small_model, small_shape, device, chunks
):
    cache = new_cache(small_shape, device)
    cache.add("a")
    logits, start = [], 0
    for size in chunks:
        logits.append(forward(small_model, cache, {"a": A[start : start + size]}, all_logits=True))
        start += size
    expected = whole(small_model, A)
    torch.testing.assert_close(torch.cat(logits), expected, rtol=1e-5, atol=1e-5)


def test_sequences_of_one_step_do_not_see_each_other(new_cache, small_model, small_shape, device):
    cache = new_cache(small_shape, device)
    cache.add("a")
    cache.add("b")
    forward(small_model, cache, {"a": A[:4], "b": B[:1]})
    forward(small_model, cache, {"b": B[1:2]})
    last = forward(small_model, cache, {"b": B[2:], "a": A[4:]})
    torch.testing.assert_close(last[0], whole(small_model, B)[-1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last[1], whole(small_model, A)[-1], rtol=1e-5, atol=1e-5)


def test_a_sequence_without_new_tokens_rides_along_unharmed(new_cache, small_model, small_shape):
    cache = new_cache(small_shape, small_model.device)
    cache.add("a")
    cache.add("b")
    forward(small_model, cache, {"a": A[:4]})
    got = forward(small_model, cache, {"b": [], "a": A[4:]})[1]
    torch.testing.assert_close(got, whole(small_model, A)[-1], rtol=1e-5, atol=1e-5)
    assert (cache.length("a"), cache.length("b")) == (7, 0)


def test_a_step_without_any_token_is_refused(new_cache, small_model, small_shape):
    cache = new_cache(small_shape, small_model.device)
    cache.add("a")
    with pytest.raises(ValueError, match="at least 1 token, this one 0 of 1"):
        forward(small_model, cache, {"a": []})
    assert cache.length("a") == 0
    cache.check()


def test_nothing_depends_on_free_slots(new_cache, small_model, small_shape):
    """Free slots are filled with NaN: lengths, not values, decide what is read."""
    cache = new_cache(small_shape, small_model.device)
    poison(cache)
    cache.add("old")
    forward(small_model, cache, {"old": [3] * 16})
    fill(cache.store, float("nan"))
    cache.free("old")
    cache.add("a")
    got = [forward(small_model, cache, {"a": [t]}) for t in A]
    torch.testing.assert_close(torch.cat(got), whole(small_model, A), rtol=1e-5, atol=1e-5)


def test_the_stored_keys_are_what_later_tokens_read(new_cache, small_model, small_shape):
    """A cache that silently is not used would not notice that its keys were overwritten."""
    cache = new_cache(small_shape, small_model.device)
    cache.add("a")
    forward(small_model, cache, {"a": A[:6]})
    for slot in slots(cache, "a", 6):
        block, offset = divmod(slot, cache.store.block_size)
        cache.store.keys[:, block, :, offset] += 1.0
    got = forward(small_model, cache, {"a": A[6:]})[0]
    assert (got - whole(small_model, A)[-1]).abs().max() > 1e-2


def test_attention_over_rows_meets_the_reference(new_cache, small_shape, device):
    cache = new_cache(small_shape, device)
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(5, h, 8, generator=generator).to(device) for h in (6, 2, 2))
    cache.add("a")
    cache.add("b")
    with cache.step({"a": [0, 0], "b": [0, 0, 0]}) as plan:
        cache.write(1, k, v, plan)
        out = cache.attend(1, q, plan)
    for part in (slice(0, 2), slice(2, 5)):
        expected, _ = reference_attention(q[part], k[part], v[part])
        torch.testing.assert_close(out[part].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_step_that_raises_leaves_the_cache_as_it_was(new_cache, small_model, small_shape):
    cache = new_cache(small_shape, small_model.device)
    cache.add("a")
    forward(small_model, cache, {"a": A[:4]})
    with pytest.raises(RuntimeError, match="power cut"), cache.step({"a": A[4:]}) as plan:
        cache.write(0, *torch.ones(2, 3, 2, 8, device=small_model.device), plan)
        raise RuntimeError("power cut")
    assert cache.length("a") == 4
    got = forward(small_model, cache, {"a": A[4:]})[0]
    torch.testing.assert_close(got, whole(small_model, A)[-1], rtol=1e-5, atol=1e-5)


def test_writing_after_the_step_is_refused(new_cache, small_shape):
    cache = new_cache(small_shape)
    cache.add("a")
    with cache.step({"a": [1]}) as plan:
        cache.write(0, torch.ones(1, 2, 8), torch.ones(1, 2, 8), plan)
    written = cache.store.keys.clone().nan_to_num()
    with pytest.raises(ValueError, match="not open"):
        cache.write(0, torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), plan)
    with pytest.raises(ValueError, match="not open"):
        cache.attend(0, torch.zeros(1, 6, 8), plan)
    assert torch.equal(cache.store.keys.nan_to_num(), written)


def test_overflow_and_full_rows_are_refused_with_numbers(new_rows, small_shape):
    cache = new_rows(small_shape, num_seqs=1, max_seq_len=4)
    cache.add("a")
    with pytest.raises(SequenceTooLong, match="5 > max_seq_len 4"), cache.step({"a": [0] * 5}):
        pass
    with pytest.raises(OutOfBlocks, match="0 free of 1"):
        cache.add("b")
    assert cache.counters.blocks_allocated == 1
    cache.check()


@pytest.mark.parametrize("keep", [0, 3, 7])
def test_truncate_then_continue_equals_a_fresh_text(new_cache, small_model, small_shape, keep):
    cache = new_cache(small_shape, small_model.device)
    cache.add("a")
    forward(small_model, cache, {"a": A})
    cache.truncate("a", keep)
    got = forward(small_model, cache, {"a": B})[0]
    expected = whole(small_model, A[:keep] + B)[-1]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_fork_continues_on_its_own(new_cache, small_model, small_shape):
    cache = new_cache(small_shape, small_model.device)
    cache.add("a")
    forward(small_model, cache, {"a": A[:4]})
    before = cache.counters.snapshot()
    cache.fork("a", "b")
    copied = cache.counters.since(before).bytes_copied
    got = forward(small_model, cache, {"a": A[4:], "b": B})
    torch.testing.assert_close(got[0], whole(small_model, A)[-1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], whole(small_model, A[:4] + B)[-1], rtol=1e-5, atol=1e-5)
    assert copied == (4 if is_rows(cache) else 0) * small_shape.bytes_per_token("float32")


def test_reordered_beams_read_the_right_past(new_cache, small_model, small_shape):
    """Beams 0, 1, 2 continue beams 2, 0, 0."""
    cache = new_cache(small_shape, small_model.device)
    for beam in range(3):
        cache.add(beam)
        forward(small_model, cache, {beam: [10 + beam]})
    before = cache.counters.snapshot()
    cache.reorder({0: 2, 1: 0, 2: 0})
    copied = cache.counters.since(before).bytes_copied
    got = forward(small_model, cache, {beam: [20] for beam in range(3)})
    for beam, source in enumerate([2, 0, 0]):
        expected = whole(small_model, [10 + source, 20])[-1]
        torch.testing.assert_close(got[beam], expected, rtol=1e-5, atol=1e-5)
    assert copied == is_rows(cache) * small_shape.bytes_per_token("float32")


def test_bytes_are_counted_where_they_move(new_cache, small_model, small_shape):
    cache = new_cache(small_shape, small_model.device)
    cache.add("a")
    per_token = small_shape.bytes_per_token("float32")
    for size, stored in ((4, 4), (1, 5), (2, 7)):
        before = cache.counters.snapshot()
        forward(small_model, cache, {"a": [0] * size})
        work = cache.counters.since(before)
        assert work.tokens_forwarded == size
        assert work.bytes_written == size * per_token
        assert work.bytes_read == stored * per_token
        assert work.attention_pairs == sum(range(stored - size + 1, stored + 1))
        kernel = "sdpa_contiguous" if is_rows(cache) else cache.way
        assert work.kernels == {kernel: small_shape.num_layers}


def test_allocated_bytes_are_rows_times_length(small_shape, device):
    cache = contiguous(small_shape, device, dtype=torch.float16)
    assert cache.nbytes == 3 * 16 * small_shape.bytes_per_token("float16")


def test_a_latent_shape_has_no_keys_to_store():
    from kvlib.catalog import model

    for made in (ContiguousKVCache, RollingKVCache):
        with pytest.raises(ValueError, match="MLA shape has one latent"):
            made(model("DeepSeek-V3").kv, 1, 4)


def test_no_cache_refuses_to_attend_before_a_write():
    cache = NoCache()
    cache.add("a")
    with pytest.raises(ValueError, match="0 was not written"), cache.step({"a": [1]}) as plan:
        cache.attend(0, torch.ones(1, 6, 8), plan)


def test_an_exception_in_the_index_arrays_leaves_no_open_plan(new_cache, small_shape, monkeypatch):
    cache = new_cache(small_shape)
    cache.add("a")

    def no_memory(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(torch, "tensor", no_memory)
        with pytest.raises(MemoryError):
            cache.plan({"a": [1]})
    with cache.step({"a": [1]}):
        pass
    assert cache.length("a") == 1


def test_a_row_is_reset_by_keeping_nothing(new_cache, small_model, small_shape):
    """Positions start at 0 again, and nothing of the old text is seen."""
    cache = new_cache(small_shape, small_model.device)
    cache.add("a")
    forward(small_model, cache, {"a": A})
    cache.truncate("a", 0)
    assert cache.length("a") == 0
    got = forward(small_model, cache, {"a": B})[0]
    torch.testing.assert_close(got, whole(small_model, B)[-1], rtol=1e-5, atol=1e-5)


def test_a_sequence_beyond_the_rows_is_refused_or_queued(new_rows, small_shape):
    cache = new_rows(small_shape, num_seqs=1)
    waiting, served = ["a", "b", "c"], []
    while waiting:
        if cache.can_add():
            cache.add(waiting.pop(0))
        else:
            served.extend(cache.ledger.seq_ids)
            cache.free(cache.ledger.seq_ids[0])
    assert served == ["a", "b"] and cache.ledger.seq_ids == ("c",)
    with pytest.raises(OutOfBlocks, match="asked for 1 row, 0 free of 1"):
        cache.add("d")


def test_reads_are_views_and_not_copies(new_rows, small_shape):
    cache = new_rows(small_shape)
    cache.add("a")
    with cache.step({"a": [0] * 3}):
        pass
    view, _ = cache.store.view(0, cache.ledger.row("a"), 3)
    assert view.untyped_storage().data_ptr() == cache.store.keys.untyped_storage().data_ptr()


def test_freeing_twice_is_refused_and_gives_no_second_place(new_cache, small_shape):
    cache = new_cache(small_shape)
    free = cache.ledger.num_free
    cache.add("a")
    with cache.step({"a": [1] * 4}):
        pass
    assert cache.ledger.num_free < free
    cache.free("a")
    with pytest.raises(KeyError, match="no sequence 'a'"):
        cache.free("a")
    assert cache.ledger.num_free == free
    cache.check()


@pytest.mark.parametrize("sizes", [{"num_seqs": 0}, {"max_seq_len": 0}, {"max_seq_len": -1}])
def test_a_capacity_of_nothing_is_refused(new_cache, small_shape, sizes):
    with pytest.raises(ValueError, match="must be at least 1"):
        new_cache(small_shape, **sizes)


def test_sizes_are_checked_before_anything_is_allocated():
    with pytest.raises(ValueError, match="max_seq_len must be at least 1, got 0"):
        contiguous(KVShape(num_layers=2, num_kv_heads=2, head_dim=8), max_seq_len=0)
