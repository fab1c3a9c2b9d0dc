"""The paged cache under a model: same tokens, other addresses; shared until written."""

from dataclasses import replace

import pytest
import torch

from conftest import small_config
from exact_caches import contiguous, fill, poison
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.tensors.attention import reference_attention
from kvlib.tensors.attention_parts import merge
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.paged_attention import WAYS, paged_attention
from kvlib.tensors.paged_context import PagedContext
from kvlib.tensors.step import NoCache

A, B = [5, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8]


def forward(model, cache, new, **options):
    tokens = torch.tensor([t for ts in new.values() for t in ts], device=model.device)
    with cache.step(new) as plan:
        return model(tokens, cache, plan, **options)


def whole(model, tokens):
    cache = NoCache(model.device)
    cache.add("x")
    return forward(model, cache, {"x": tokens}, all_logits=True)


def paged(model, num_blocks=16, block_size=3, **options):
    place = {"dtype": model.dtype, "device": model.device}
    return poison(PagedKVCache(model.kv_shape, num_blocks, block_size, **place, **options))


@pytest.fixture(params=[way for way in WAYS if way != "triton"])
def way(request, device):
    """Triton takes other sizes than these small ones; tests/test_paged_triton.py has its cases."""
    if request.param == "cpu" and device.type != "cpu":
        pytest.skip("the compiled kernel attends on a CPU")
    return request.param


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("chunks", [[7], [1] * 7, [3, 2, 2], [6, 1]])
def test_any_chunking_in_any_blocks_gives_the_logits_of_the_whole_text(
    small_model, way, block_size, chunks
):
    cache = paged(small_model, block_size=block_size, way=way)
    cache.add("a")
    logits, start = [], 0
    for size in chunks:
        logits.append(forward(small_model, cache, {"a": A[start : start + size]}, all_logits=True))
        start += size
    torch.testing.assert_close(torch.cat(logits), whole(small_model, A), rtol=1e-5, atol=1e-5)


def test_a_ragged_batch_with_an_empty_sequence(small_model, way):
    cache = paged(small_model, way=way)
    for seq_id in "abc":
        cache.add(seq_id)
    forward(small_model, cache, {"a": A[:4], "b": B[:1]})
    forward(small_model, cache, {"b": B[1:2], "c": [], "a": []})
    last = forward(small_model, cache, {"c": [], "b": B[2:], "a": A[4:]})
    torch.testing.assert_close(last[1], whole(small_model, B)[-1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last[2], whole(small_model, A)[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("window", [None, 1, 3, 5, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_meets_the_reference(way, heads, window, dtype, device):
    """Mixed batch: decode, chunk, whole prompt, nothing; blocks in no order."""
    num_q, num_kv = heads
    model = Llama.random(small_config(num_q_heads=num_q, num_kv_heads=num_kv), seed=1)
    cache = PagedKVCache(model.kv_shape, 16, 4, window=window, way=way, dtype=dtype, device=device)
    poison(cache)
    generator = torch.Generator().manual_seed(3)

    def draw(tokens, num_heads):
        made = torch.randn(tokens, num_heads, 8, generator=generator)
        return made.to(device=device, dtype=dtype)

    held = {}
    for seq_id, length in {"a": 9, "b": 6, "c": 0, "d": 2}.items():
        cache.add(seq_id)
        held[seq_id] = draw(length, num_kv), draw(length, num_kv)
        with cache.step({seq_id: [0] * length}) as plan:
            cache.write(1, *held[seq_id], plan)
    new = {"a": 1, "b": 5, "c": 4, "d": 0}
    q, k, v = draw(10, num_q), draw(10, num_kv), draw(10, num_kv)
    with cache.step({s: [0] * n for s, n in new.items()}) as plan:
        cache.write(1, k, v, plan)
        out = cache.attend(1, q, plan)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    start = 0
    for seq_id, n in new.items():
        rows = slice(start, start + n)
        start += n
        if n:
            keys, values = (
                torch.cat([o, f[rows]]) for o, f in zip(held[seq_id], (k, v), strict=True)
            )
            expected, _ = reference_attention(q[rows], keys, values, window=window)
            torch.testing.assert_close(out[rows].double(), expected, rtol=tolerance, atol=tolerance)


def test_parts_merge_in_any_order_and_empty_ones_count_for_nothing():
    generator = torch.Generator().manual_seed(5)
    parts = [(torch.randn(2, 3, 4, generator=generator), torch.randn(2, 3)) for _ in range(4)]
    nothing = (torch.full((2, 3, 4), torch.nan), torch.full((2, 3), -torch.inf))
    out, lse = merge(parts)
    for order in ([3, 0, 2, 1], [1, 2, 3, 0]):
        again, lse_again = merge([nothing, *(parts[i] for i in order)])
        torch.testing.assert_close(again, out)
        torch.testing.assert_close(lse_again, lse)
    halves = [merge(parts[:2]), merge(parts[2:])]
    torch.testing.assert_close(merge(halves)[0], out)
    zero, minus = merge([nothing, nothing])
    assert not zero.any() and (minus == -torch.inf).all()


def test_scores_that_differ_by_thousands_still_merge():
    far = [(torch.ones(1, 1), torch.tensor([3000.0])), (torch.zeros(1, 1), torch.tensor([-3000.0]))]
    assert merge(far)[0].item() == 1.0


def test_parallel_samples_share_a_prompt_and_copy_one_block_each(small_model):
    """Six tokens in blocks of four: the second block is half full and shared by four."""
    cache = paged(small_model, block_size=4)
    cache.add("a")
    forward(small_model, cache, {"a": A[:6]})
    for child in "bcd":
        cache.fork("a", child)
    assert cache.ledger.pool.num_held == 2
    tails = {"a": [1, 2], "b": [3, 4], "c": [5, 6], "d": [7, 8]}
    got = forward(small_model, cache, tails)
    for row, tail in zip(got, tails.values(), strict=True):
        expected = whole(small_model, A[:6] + tail)[-1]
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-5)
    per_token = small_model.kv_shape.bytes_per_token("float32")
    assert cache.counters.bytes_copied == 3 * 2 * per_token
    clones = contiguous(small_model.kv_shape, small_model.device, num_seqs=4)
    clones.add("a")
    forward(small_model, clones, {"a": A[:6]})
    before = clones.counters.bytes_copied
    for child in "bcd":
        clones.fork("a", child)
    assert clones.counters.bytes_copied - before == 3 * 6 * per_token


def test_beams_go_on_from_the_right_past(small_model):
    cache = paged(small_model)
    for beam in range(3):
        cache.add(beam)
        forward(small_model, cache, {beam: [10 + beam]})
    cache.reorder({0: 2, 1: 0, 2: 0})
    got = forward(small_model, cache, {beam: [20] for beam in range(3)})
    for beam, source in enumerate([2, 0, 0]):
        expected = whole(small_model, [10 + source, 20])[-1]
        torch.testing.assert_close(got[beam], expected, rtol=1e-5, atol=1e-5)


def test_an_aborted_step_leaves_blocks_and_sharing_as_they_were(small_model):
    cache = paged(small_model)
    cache.add("a")
    forward(small_model, cache, {"a": A[:4]})
    cache.fork("a", "b")
    free = cache.ledger.num_free
    with pytest.raises(RuntimeError, match="power cut"), cache.step({"b": B, "a": [1]}) as plan:
        cache.write(0, *torch.ones(2, 5, 2, 8, device=cache.device), plan)
        raise RuntimeError("power cut")
    assert cache.ledger.num_free == free
    cache.check()
    got = forward(small_model, cache, {"a": A[4:], "b": B})
    torch.testing.assert_close(got[0], whole(small_model, A)[-1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], whole(small_model, A[:4] + B)[-1], rtol=1e-5, atol=1e-5)


def test_a_failed_copy_gives_everything_back(small_model, monkeypatch):
    cache = paged(small_model)
    cache.add("a")
    forward(small_model, cache, {"a": A[:4]})
    cache.fork("a", "b")
    free = cache.ledger.num_free

    def fails(*_, **__):
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(cache.store, "copy_block", fails)
        with pytest.raises(RuntimeError, match="device lost"):
            cache.plan({"b": [1]})
    assert cache.ledger.num_free == free
    cache.check()


def test_a_window_gives_blocks_back_and_attends_the_same(small_model):
    """After 12 tokens with a window of 4 no more than 4 + a block's rest are held."""
    tokens = list(range(12))
    cache = paged(small_model, block_size=2, window=4)
    full = paged(small_model, block_size=2)
    cache.add("a")
    full.add("a")
    for token in tokens:
        forward(small_model, cache, {"a": [token]})
        forward(small_model, full, {"a": [token]})
    assert cache.ledger.pool.num_held <= 3 < full.ledger.pool.num_held == 6
    assert cache.counters.attention_pairs == sum(min(p + 1, 4) for p in range(12))
    fill_free_blocks(cache)
    forward(small_model, cache, {"a": [1]})


def fill_free_blocks(cache):
    held = {b for s in cache.ledger.seq_ids for b in cache.ledger.table(s)}
    for block in set(range(cache.ledger.pool.num_blocks)) - held:
        cache.store.keys[:, block] = torch.nan
        cache.store.values[:, block] = torch.nan


def test_bytes_are_counted_where_they_move(small_model):
    cache = paged(small_model)
    cache.add("a")
    per_token = small_model.kv_shape.bytes_per_token("float32")
    for size, stored, blocks in ((4, 4, 2), (1, 5, 0), (2, 7, 1)):
        before = cache.counters.snapshot()
        forward(small_model, cache, {"a": [0] * size})
        work = cache.counters.since(before)
        assert work.bytes_written == size * per_token
        assert work.bytes_read == stored * per_token
        assert work.blocks_allocated == blocks
        assert work.attention_pairs == sum(range(stored - size + 1, stored + 1))
        assert work.kernels == {cache.way: small_model.kv_shape.num_layers}


def test_what_does_not_fit_is_refused_with_numbers(small_model):
    cache = paged(small_model, num_blocks=4, block_size=2)
    cache.add("a")
    cache.add("b")
    forward(small_model, cache, {"a": A[:5]})
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks of 2, 1 free of 4"):
        forward(small_model, cache, {"b": B[:3]})
    with pytest.raises(SequenceTooLong, match="9 > 8, the whole pool"):
        forward(small_model, cache, {"b": [1] * 9})
    assert (cache.length("a"), cache.length("b"), cache.ledger.num_free) == (5, 0, 1)
    cache.check()


def test_bad_input_is_refused_before_anything_is_allocated(small_model):
    shape = small_model.kv_shape
    for options in ({"block_size": 0}, {"block_size": -1}, {"num_blocks": 0}, {"window": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            PagedKVCache(shape, **{"num_blocks": 2, **options})
    with pytest.raises(ValueError, match="way to attend"):
        PagedKVCache(shape, 2, way="flash")


def test_attention_refuses_what_does_not_fit(small_model):
    cache = paged(small_model)
    cache.add("a")
    with cache.step({"a": [1, 2]}) as plan:
        keys, values = cache.store.keys[0], cache.store.values[0]
        for q, k, v, message in (
            (torch.ones(3, 6, 8), keys, values, r"q must be \[2, Hq, D\]"),
            (torch.ones(2, 5, 8), keys, values, "multiple of KV heads: 5 and 2"),
            (torch.ones(2, 6, 4), keys, values, "head_dim of q"),
            (torch.ones(2, 6, 8).half(), keys, values, "in one dtype"),
            (torch.ones(2, 6, 8), keys[:, :, :2], values[:, :, :2], "blocks of 3, the store has 2"),
        ):
            with pytest.raises(ValueError, match=message):
                paged_attention(q.to(cache.device), k, v, plan.context)


def test_a_table_too_short_for_its_sequence_is_refused(small_model):
    """A kernel would read whatever lies behind the table."""
    cache = paged(small_model)
    cache.add("a")
    host = cache.ledger.plan({"a": [1] * 7})
    short = replace(host, block_table=(host.block_table[0][:2],))
    with pytest.raises(ValueError, match="'a' has 2 blocks of 3, too short for its 7 tokens"):
        PagedContext.of(short, cache.device)


def test_free_slots_never_show(small_model):
    cache = paged(small_model)
    cache.add("old")
    forward(small_model, cache, {"old": [3] * 16})
    cache.free("old")
    fill(cache.store, float("nan"))
    cache.add("a")
    got = [forward(small_model, cache, {"a": [t]}) for t in A]
    torch.testing.assert_close(torch.cat(got), whole(small_model, A), rtol=1e-5, atol=1e-5)
