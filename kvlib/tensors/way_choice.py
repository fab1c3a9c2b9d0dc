"""Which way to attend a cache takes: the one it was told, or the fastest on its device."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec

import torch

from kvlib.sizes import KVShape, near
from kvlib.tensors.kernels import paged_cpu, paged_triton, quantized_cpu
from kvlib.tensors.kernels.build import NoCompiler
from kvlib.tensors.paged_attention import WAYS

WAYS_OVER_CODES = ("cpu", "dequantize")


def choose_way(
    way: str | None, device: torch.device, dtype: torch.dtype, shape: KVShape, block_size: int
) -> str:
    """Returns the way to attend: the one that was named, or the fastest on this device.

    Where the CPU kernel cannot be compiled, `chunked` is taken, and a warning says so once.

    Raises:
        ValueError: there is no such way, or not on this device.
        NoCompiler: "cpu" was named, and cannot be compiled on this machine.
    """
    if way is None:
        return _fastest(device, dtype, shape, block_size)
    if way not in WAYS:
        raise ValueError(near(way, WAYS, "way to attend"))
    if way == "cpu":
        if device.type != "cpu":
            raise ValueError(f"the way 'cpu' attends on a CPU, this cache is on {device}")
        paged_cpu.kernel(dtype, 0, 0)
    if way == "triton":
        if device.type != "cuda" and not paged_triton.interpreted():
            raise ValueError(f"the way 'triton' attends on CUDA, this cache is on {device}")
        if reason := paged_triton.refusal(dtype, shape.head_dim, block_size):
            raise ValueError(f"the way 'triton' does not take this cache: {reason}")
    return way


def _fastest(device: torch.device, dtype: torch.dtype, shape: KVShape, block_size: int) -> str:
    if device.type == "cuda" and not paged_triton.refusal(dtype, shape.head_dim, block_size):
        return "triton" if find_spec("triton") else "gather"
    if device.type != "cpu" or dtype not in paged_cpu.TYPES:
        return "gather"
    try:
        paged_cpu.kernel(dtype, 0, 0)
    except NoCompiler as error:
        _say_once("attending by chunks", str(error))
        return "chunked"
    return "cpu"


def choose_way_over_codes(way: str | None, device: torch.device, dtype: torch.dtype) -> str:
    """Returns the way to attend to codes: the one that was named, or the fastest there is.

    "cpu" is the compiled kernel; "dequantize", which goes on every device, writes the numbers down.
    Where the kernel cannot be compiled, the second is taken, and a warning says so once.

    Raises:
        ValueError: there is no such way, or not on this device.
        NoCompiler: "cpu" was named, and cannot be compiled on this machine.
    """
    if way is None:
        if device.type != "cpu" or dtype not in paged_cpu.TYPES:
            return "dequantize"
        try:
            quantized_cpu.kernel(0, 0)
            paged_cpu.kernel(dtype, 0, 0)
        except NoCompiler as error:
            _say_once("dequantising in every step", str(error))
            return "dequantize"
        return "cpu"
    if way not in WAYS_OVER_CODES:
        raise ValueError(near(way, WAYS_OVER_CODES, "way to attend"))
    if way == "cpu":
        if device.type != "cpu":
            raise ValueError(f"the way 'cpu' attends on a CPU, this cache is on {device}")
        quantized_cpu.kernel(0, 0)
    return way


@cache
def _say_once(instead: str, reason: str) -> None:
    warnings.warn(f"{instead}, without the CPU kernel: {reason}", stacklevel=4)
