"""Blocks in host memory: copies under their keys, counted, and each in a place of its own."""

import pytest
import torch

from kvlib.tensors import host_blocks
from kvlib.tensors.host_blocks import HostBlocks

K = torch.arange(16.0).reshape(2, 1, 4, 2)


@pytest.fixture
def blocks():
    made = HostBlocks()
    made.put(b"a", K, K + 100)
    made.put(b"b", K.half(), K.half())
    made.check()
    return made


def test_both_sides_come_back_under_their_own_key(blocks):
    k, v = blocks.get(b"a")
    assert torch.equal(k, K) and torch.equal(v, K + 100)
    assert blocks.get(b"b")[1].dtype == torch.float16
    assert (len(blocks), blocks.nbytes) == (2, 2 * 64 + 2 * 32)
    assert b"a" in blocks and b"c" not in blocks


def test_what_is_put_again_takes_the_place_of_the_first(blocks):
    before = blocks.get(b"a")[0]
    blocks.put(b"a", K + 1, K)
    assert torch.equal(blocks.get(b"a")[0], K + 1) and torch.equal(before, K)
    assert len(blocks) == 2


def test_what_is_removed_is_gone(blocks):
    blocks.remove(b"a")
    blocks.remove(b"c")
    assert b"a" not in blocks and (len(blocks), blocks.nbytes) == (1, 64)
    for key in (b"a", b"c"):
        with pytest.raises(KeyError, match="no such block among 1 on the host"):
            blocks.get(key)


def test_what_is_no_block_is_refused_and_changes_nothing(blocks):
    for k, v in ((K, K[:1]), (K, K.half()), (K[0], K[0])):
        with pytest.raises(ValueError, match="a block is k and v"):
            blocks.put(b"a", k, v)
    assert torch.equal(blocks.get(b"a")[0], K)


@pytest.mark.parametrize(
    "spoilt, error",
    [
        (torch.stack((K, K)).to("meta"), AssertionError),
        (torch.stack((K, K), -1).movedim(-1, 0), AssertionError),
        (torch.stack((K[0], K[0])), ValueError),
    ],
)
def test_a_check_finds_what_is_no_block_of_the_host(blocks, spoilt, error):
    blocks._blocks[b"c"] = spoilt
    with pytest.raises(error):
        blocks.check()


def test_a_check_finds_two_blocks_in_one_place(blocks):
    blocks._blocks[b"c"] = blocks._blocks[b"a"].view(2, 2, 1, 4, 2)
    with pytest.raises(AssertionError, match="two blocks in one place"):
        blocks.check()


@pytest.mark.parametrize("pinned", [False, True])
def test_only_where_it_is_asked_for_is_memory_pinned(monkeypatch, pinned):
    """As on a machine with a CUDA device: what torch is asked for is noted, and not done."""
    asked, empty = [], torch.empty

    def watched(*size, pin_memory=False, **options):
        asked.append(pin_memory)
        return empty(*size, **options)

    monkeypatch.setattr(host_blocks.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(host_blocks.torch, "empty", watched)
    made = HostBlocks(pinned=pinned) if pinned else HostBlocks()
    made.put(b"a", K, K)
    assert asked == [pinned] and made.pinned is pinned
    assert torch.equal(made.get(b"a")[1], K)


def test_pinned_memory_without_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(host_blocks.torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="has none: pinned=False"):
        HostBlocks(pinned=True)
    assert not HostBlocks().pinned
