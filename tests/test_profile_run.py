"""A profile run counts what a step holds, on a device with bytes and on one without."""

import pytest
import torch

from kvlib.overheads import activation_bytes
from kvlib.tensors.llama import Llama, LlamaConfig
from kvlib.tensors.profile_run import PeakBytes, profile_run

# Three times as wide inside the MLP as between layers, like real ones; so the MLP is the peak.
CONFIG = LlamaConfig(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=192,
    num_layers=2,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
)


@pytest.fixture(scope="module")
def model():
    return Llama.random(CONFIG, seed=0)


def test_what_is_alive_counts_and_views_and_old_tensors_do_not():
    old = torch.ones(1000)
    with PeakBytes() as memory:
        a = torch.ones(10)
        b = a + 1
        del a
        assert memory.live == 40 and memory.peak == 80
        c = b.view(2, 5)[0]
        old.add_(1)
        old[:3].mul_(2)
        assert memory.live == 40
        del b
        assert memory.live == 40  # the view keeps it
        del c
        assert memory.live == 0
        d, e = torch.ones(12).sort()
    assert memory.live == d.nbytes + e.nbytes == 48 + 96
    assert memory.peak == 48 + 48 + 96


def test_storages_that_come_and_go_at_one_address_are_counted_each():
    with PeakBytes() as memory:
        for _ in range(50):
            a = torch.empty(256)
            del a
    assert (memory.live, memory.peak) == (0, 1024)


def test_the_peak_grows_by_the_same_for_every_token(model):
    peaks = [profile_run(model, n).activation_bytes for n in (64, 128, 192)]
    assert peaks[2] - peaks[1] == pytest.approx(peaks[1] - peaks[0], rel=0.01)
    formula = activation_bytes(64, 192, 97, max_batched_tokens=64, max_num_seqs=1, itemsize=4)
    assert formula < peaks[1] - peaks[0] < 1.1 * formula


def test_weights_are_counted_once_where_the_head_is_the_embedding(model):
    found = profile_run(model, 8)
    assert found.weight_bytes == sum(p.nbytes for p in model.parameters())


def test_without_bytes_the_same_is_counted_where_the_same_is_done(model):
    with torch.device("meta"):
        shape = Llama(CONFIG)
    for tokens, seqs in ((64, 16), (40, 40), (41, 4)):
        ours, theirs = profile_run(model, tokens, seqs), profile_run(shape, tokens, seqs)
        assert ours.weight_bytes == theirs.weight_bytes
        assert ours.activation_bytes == pytest.approx(theirs.activation_bytes, rel=0.1)


def test_what_cannot_be_a_step_is_refused(model):
    with pytest.raises(ValueError, match="5 sequences need as many tokens, got 4"):
        profile_run(model, 4, 5)
    with pytest.raises(ValueError, match="max_batched_tokens must be at least 1"):
        profile_run(model, 0)
