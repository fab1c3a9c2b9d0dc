"""Parts of attention merge by what they weigh; and which way to attend is the fastest where."""

import math
import warnings

import pytest
import torch

from kvlib.sizes import KVShape
from kvlib.tensors import paged_attention as module
from kvlib.tensors.kernels.build import NoCompiler
from kvlib.tensors.paged_attention import choose_way, merge, partial_attention, shares_of

CPU, META, CUDA = (torch.device(name) for name in ("cpu", "meta", "cuda"))


def test_parts_weigh_what_their_keys_weigh():
    """Weights 1 and 3; the third part has no key, and what it says counts for nothing."""
    outs = torch.tensor([[[1.0, 0.0]], [[5.0, 8.0]], [[math.nan, math.inf]]])
    lses = torch.tensor([[0.0], [math.log(3)], [-math.inf]])
    out, lse = merge(list(zip(outs, lses, strict=True)))
    torch.testing.assert_close(out, torch.tensor([[4.0, 6.0]]))
    torch.testing.assert_close(lse, torch.tensor([math.log(4)]))
    half = [(o.half(), s) for o, s in zip(outs[:2], lses[:2], strict=True)]
    assert merge(half)[0].dtype == torch.float16
    with pytest.raises(ValueError, match="at least one part, got 0"):
        merge([])


def test_what_is_nan_in_a_part_is_nan_in_the_whole():
    sound, torn = (
        (torch.ones(1, 2), torch.zeros(1)),
        (torch.tensor([[1.0, math.nan]]), torch.zeros(1)),
    )
    out = merge([sound, torn])[0][0]
    assert out[0] == 1 and out[1].isnan()


def test_shares_are_taken_along_the_axis_asked_for():
    scores = torch.tensor([[0.0, math.log(3)], [-math.inf, -math.inf], [1e6, 1e6]])
    shares, lse = shares_of(scores, dim=1)
    torch.testing.assert_close(shares, torch.tensor([[0.25, 0.75], [0, 0], [0.5, 0.5]]))
    torch.testing.assert_close(lse, torch.tensor([math.log(4), -math.inf, 1e6 + math.log(2)]))
    turned = shares_of(scores.T, dim=0)
    assert torch.equal(turned[0].T, shares) and torch.equal(turned[1], lse)
    shares, lse = shares_of(torch.zeros(2, 0), dim=1)
    assert shares.shape == (2, 0) and lse.tolist() == [-math.inf] * 2
    shares, lse = shares_of(torch.zeros(2, 0), dim=0)
    assert shares.shape == (2, 0) and lse.shape == (0,)


def test_a_part_says_what_it_saw():
    """Queries at 5 and 6, keys at 4 to 6, of two heads; scores are 2 q k / sqrt(4)."""
    q = torch.tensor([1.0, -1.0]).reshape(2, 1, 1).expand(2, 2, 4) * torch.tensor([2.0, 0, 0, 0])
    k = torch.tensor([0.0, math.log(3), 1.0]).reshape(1, 3, 1).expand(1, 3, 4)
    v = torch.tensor([4.0, 8.0, 16.0]).reshape(1, 3, 1).expand(1, 3, 4)
    out, lse = partial_attention(q, k, v, 4, 5, None)
    assert out.shape == (2, 2, 4) and lse.shape == (2, 2)
    assert out[0, 1].tolist() == pytest.approx([7.0] * 4) and lse[0, 1].item() == pytest.approx(
        math.log(4)
    )
    out, lse = partial_attention(q.half(), k.half(), v.half(), 4, 5, 1)
    assert out.dtype == lse.dtype == torch.float32
    assert out[:, 0, 0].tolist() == [8, 16] and lse[1, 0].item() == pytest.approx(-1)
    out, lse = partial_attention(q, k, v, 7, 5, None)  # keys behind the queries
    assert not out.any() and (lse == -math.inf).all()
    out, lse = partial_attention(q, k, v, 2, 5, 2)  # only the first query still sees the last key
    assert out[:, 0, 0].tolist() == [16, 0] and lse[1, 0] == -math.inf


SHAPE = KVShape(num_layers=1, num_kv_heads=2, head_dim=64)


@pytest.mark.parametrize(
    "way, device, dtype, chosen",
    [
        (None, CPU, torch.float32, "cpu"),
        (None, CPU, torch.bfloat16, "cpu"),
        (None, CPU, torch.float64, "gather"),
        (None, META, torch.float32, "gather"),
        (None, CUDA, torch.float64, "gather"),
        ("cpu", CPU, torch.float16, "cpu"),
        ("gather", CUDA, torch.float64, "gather"),
        ("reference", META, torch.float32, "reference"),
        ("triton", CUDA, torch.float16, "triton"),
    ],
)
def test_the_way_is_the_one_named_or_the_fastest_here(way, device, dtype, chosen):
    assert choose_way(way, device, dtype, SHAPE, 16) == chosen


def test_on_cuda_the_fastest_is_triton_where_it_is_and_takes_the_cache(monkeypatch):
    for found, size, chosen in ((True, 16, "triton"), (True, 4, "gather"), (None, 16, "gather")):
        monkeypatch.setattr(module, "find_spec", lambda name, found=found: found)
        assert choose_way(None, CUDA, torch.float16, SHAPE, size) == chosen


def test_ways_that_do_not_go_here_are_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for way, device, size, says in (
        ("flash", CPU, 16, "way to attend 'flash'"),
        ("cpu", META, 16, "attends on a CPU, this cache is on meta"),
        ("triton", CPU, 16, "attends on CUDA, this cache is on cpu"),
        ("triton", CUDA, 4, "does not take this cache: block_size is 8 to 256, got 4"),
    ):
        with pytest.raises(ValueError, match=says):
            choose_way(way, device, torch.float32, SHAPE, size)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_way("triton", CPU, torch.float32, SHAPE, 16) == "triton"


def test_without_a_compiler_the_blocks_are_read_in_chunks_and_it_is_said_once(monkeypatch):
    def missing(dtype, head_dim, group):
        raise NoCompiler("no C++ compiler on this machine")

    monkeypatch.setattr(module.paged_cpu, "kernel", missing)
    module._say_once.cache_clear()
    with pytest.warns(UserWarning, match="attending by chunks, without the CPU kernel: no C"):
        assert choose_way(None, CPU, torch.float32, SHAPE, 16) == "chunked"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_way(None, CPU, torch.float32, SHAPE, 16) == "chunked"
    with pytest.raises(NoCompiler):
        choose_way("cpu", CPU, torch.float32, SHAPE, 16)
