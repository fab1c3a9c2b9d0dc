"""The rolling cache: a window, whole positions, and no trace of a failed step."""

import pytest
import torch

from conftest import small_config
from kvlib.plan import OutOfBlocks
from kvlib.tensors.attention import reference_attention
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.sink_window import RollingKVCache

TOKENS = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def feed(model, cache, tokens, seq_id="a"):
    with cache.step({seq_id: tokens}) as plan:
        return model(torch.tensor(tokens, device=model.device), cache, plan)[0]


def rolling(shape, device="cpu", window=4):
    cache = RollingKVCache(shape, num_seqs=2, window=window, device=device)
    cache.add("a")
    return cache


@pytest.mark.parametrize("chunks", [[12], [1] * 12, [3, 4, 5], [7, 1, 4], [5, 7]])
@pytest.mark.parametrize("window", [1, 4, 5])
def test_attention_is_that_of_a_window_however_the_tokens_are_chunked(
    small_shape, device, chunks, window
):
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(12, h, 8, generator=generator).to(device) for h in (6, 2, 2))
    cache = rolling(small_shape, device, window)
    got, start = [], 0
    for size in chunks:
        rows = slice(start, start + size)
        with cache.step({"a": [0] * size}) as plan:
            for layer in (0, 1):
                cache.write(layer, k[rows], v[rows], plan)
                out = cache.attend(layer, q[rows], plan)
        got.append(out)
        start += size
    expected, _ = reference_attention(q, k, v, window=window)
    torch.testing.assert_close(torch.cat(got).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_window_as_long_as_the_text_forgets_nothing(small_model, small_shape, device):
    whole = ContiguousKVCache(small_shape, 1, 12, device=device)
    whole.add("a")
    cache = rolling(small_shape, device, window=12)
    for tokens in (TOKENS[:5], TOKENS[5:6], TOKENS[6:]):
        got, expected = (feed(small_model, c, tokens) for c in (cache, whole))
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_shorter_window_forgets_the_first_tokens(small_shape):
    model = Llama.random(small_config(), seed=1)
    caches = [rolling(small_shape) for _ in range(2)]
    same = [feed(model, c, [first, *TOKENS[1:]]) for c, first in zip(caches, (5, 6), strict=True)]
    # Two layers of window 4 look back 7 tokens: the first of 12 is out of reach.
    torch.testing.assert_close(*same, rtol=0, atol=0)


def test_positions_are_kept_and_old_ones_are_gone(small_model, small_shape):
    cache = rolling(small_shape, small_model.device)
    feed(small_model, cache, TOKENS[:3])
    assert cache.positions("a") == [0, 1, 2]
    feed(small_model, cache, TOKENS[3:9])
    assert (cache.length("a"), cache.positions("a")) == (9, [5, 6, 7, 8])
    with cache.step({"a": [0]}) as plan:
        assert plan.host.positions == (9,)
        for layer in (0, 1):
            cache.write(layer, *torch.zeros(2, 1, 2, 8, device=small_model.device), plan)


def test_a_prefill_longer_than_the_window_and_than_nothing(small_shape):
    """Window 4, first prefill of 7 tokens: positions 3..6 stay."""
    cache = rolling(small_shape)
    with cache.step({"a": [0] * 7}) as plan:
        k = torch.arange(7.0).reshape(7, 1, 1).expand(7, 2, 8)
        for layer in (0, 1):
            cache.write(layer, k, k, plan)
    held, _ = cache.store.read(0, torch.tensor([p % 4 for p in cache.positions("a")]))
    assert held[:, 0, 0].tolist() == [3.0, 4.0, 5.0, 6.0]


def test_a_failed_step_leaves_the_ring_as_it_was(small_model, small_shape):
    cache = rolling(small_shape, small_model.device)
    feed(small_model, cache, TOKENS[:6])
    before = cache.store.keys.clone()
    with pytest.raises(RuntimeError, match="power cut"), cache.step({"a": [1, 2]}) as plan:
        for layer in (0, 1):
            cache.write(layer, *torch.ones(2, 2, 2, 8, device=small_model.device), plan)
        raise RuntimeError("power cut")
    assert torch.equal(before.nan_to_num(), cache.store.keys.nan_to_num())
    assert cache.length("a") == 6


def test_going_back_over_what_was_overwritten_is_refused(small_model, small_shape):
    """A ring of 4 after 6 tokens holds positions 2..5; the query at 5 sees 2..5, at 4 it sees 1."""
    cache = rolling(small_shape, small_model.device)
    feed(small_model, cache, TOKENS[:4])
    cache.truncate("a", 3)
    assert cache.positions("a") == [0, 1, 2]
    feed(small_model, cache, TOKENS[3:6])
    for keep in (4, 3, 2, 1):
        with pytest.raises(ValueError, match="before position 2 are gone"):
            cache.truncate("a", keep)
    cache.truncate("a", 6)
    assert (cache.length("a"), cache.positions("a")) == (6, [2, 3, 4, 5])


@pytest.mark.parametrize("keep", [5, 0])
def test_after_going_back_the_text_goes_on_as_if_nothing_had_been_there(
    small_model, small_shape, keep
):
    cache, fresh = (rolling(small_shape, small_model.device) for _ in range(2))
    feed(small_model, cache, TOKENS[:6])
    cache.truncate("a", keep)
    if keep:
        feed(small_model, fresh, TOKENS[:keep])
    for tokens in ([7], [3, 1], [2] * 6):
        got, expected = (feed(small_model, c, tokens) for c in (cache, fresh))
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_two_open_steps_do_not_mix_their_keys(small_shape):
    cache = rolling(small_shape)
    cache.add("b")
    plans = {seq_id: cache.plan({seq_id: [0]}) for seq_id in "ab"}
    for value, plan in enumerate(plans.values(), start=1):
        for layer in (0, 1):
            cache.write(layer, *torch.full((2, 1, 2, 8), float(value)), plan)
    cache.abort(plans["b"])
    assert (cache.attend(1, torch.ones(1, 6, 8), plans["a"]) == 1).all()
    cache.commit(plans["a"])
    assert (cache.store.keys[:, 0, :, 0] == 1).all()


def test_the_ledger_counts_what_the_ring_holds(small_model, small_shape):
    cache = rolling(small_shape, small_model.device)
    feed(small_model, cache, TOKENS)
    assert (cache.ledger.used_tokens, cache.ledger.reserved_tokens) == (4, 4)
    cache.check()


def test_bytes_do_not_grow_with_the_text(small_model, small_shape):
    cache = rolling(small_shape, small_model.device)
    size = cache.nbytes
    assert size == 2 * 4 * small_shape.bytes_per_token("float32")
    feed(small_model, cache, TOKENS)
    assert cache.nbytes == size
    assert cache.counters.attention_pairs == sum(min(p + 1, 4) for p in range(12))
    with pytest.raises(OutOfBlocks):
        for seq_id in "bc":
            cache.add(seq_id)
