"""Which way to attend is the fastest where, and which are refused."""

import warnings

import pytest
import torch

from kvlib.sizes import KVShape
from kvlib.tensors import way_choice as module
from kvlib.tensors.kernels.build import NoCompiler
from kvlib.tensors.way_choice import choose_way, choose_way_over_codes

CPU, META, CUDA = (torch.device(name) for name in ("cpu", "meta", "cuda"))
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


def no_compiler(monkeypatch, kernel):
    def missing(*sizes):
        raise NoCompiler("no C++ compiler on this machine")

    monkeypatch.setattr(kernel, "kernel", missing)
    module._say_once.cache_clear()


def test_without_a_compiler_the_blocks_are_read_in_chunks_and_it_is_said_once(monkeypatch):
    no_compiler(monkeypatch, module.paged_cpu)
    with pytest.warns(UserWarning, match="attending by chunks, without the CPU kernel: no C"):
        assert choose_way(None, CPU, torch.float32, SHAPE, 16) == "chunked"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_way(None, CPU, torch.float32, SHAPE, 16) == "chunked"
    with pytest.raises(NoCompiler):
        choose_way("cpu", CPU, torch.float32, SHAPE, 16)


@pytest.mark.parametrize(
    "way, device, dtype, chosen",
    [
        (None, CPU, torch.float32, "cpu"),
        (None, CPU, torch.bfloat16, "cpu"),
        (None, CPU, torch.float64, "dequantize"),
        (None, META, torch.float32, "dequantize"),
        ("cpu", CPU, torch.float64, "cpu"),
        ("dequantize", CUDA, torch.float16, "dequantize"),
    ],
)
def test_over_codes_the_way_is_the_one_named_or_the_kernel(way, device, dtype, chosen):
    assert choose_way_over_codes(way, device, dtype) == chosen


def test_over_codes_the_kernel_is_refused_elsewhere():
    with pytest.raises(ValueError, match="attends on a CPU, this cache is on meta"):
        choose_way_over_codes("cpu", META, torch.float32)


@pytest.mark.parametrize("kernel", ["quantized_cpu", "paged_cpu"])
def test_without_a_compiler_codes_are_dequantised_and_it_is_said_once(monkeypatch, kernel):
    no_compiler(monkeypatch, getattr(module, kernel))
    with pytest.warns(UserWarning, match="dequantising in every step, without the CPU kernel"):
        assert choose_way_over_codes(None, CPU, torch.float32) == "dequantize"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_way_over_codes(None, CPU, torch.float32) == "dequantize"
