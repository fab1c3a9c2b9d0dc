"""The CPU kernel of decoding: a few rows times large weights, each weight read once where it lies.

Libraries' matrix products are made for many rows: they first copy the weights into an order that
suits them, and many rows pay that back. A decode step has one row for each sequence. It waits for
memory, and a copy is the last thing it needs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kvlib.tensors.kernels.build import NoCompiler, library

SOURCE = Path(__file__).with_name("few_rows.cpp")
MOST_ROWS = 32  # with more of them a library's product is as fast, and then faster


def takes(x: Tensor) -> bool:
    """Answers whether rows [R, in] are for this kernel: few, float32, and a compiler is here."""
    return x.is_cpu and x.dtype == torch.float32 and 0 < x.shape[0] <= MOST_ROWS and _compiled()


@cache
def _compiled() -> bool:
    try:
        _call()
    except NoCompiler:
        return False
    return True


def product(x: Tensor, weight: Tensor, *, norm: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """Multiplies a few rows with a weight, after an RMSNorm if one is given.

    A row's result does not depend on the rows beside it, to the last bit.

    Args:
        x: [R, in].
        weight: [out, in], as `torch.nn.Linear` has it.
        norm: [in], the weights of the norm.
        eps: of the norm.

    Returns:
        [R, out].

    Raises:
        ValueError: a tensor has another shape or dtype, or is not on the CPU. Nothing is read.
        NoCompiler: the kernel cannot be compiled on this machine.
    """
    for name, tensor in {"x": x, "weight": weight, "norm": norm}.items():
        if tensor is not None and (tensor.dtype is not torch.float32 or not tensor.is_cpu):
            raise ValueError(f"{name} is float32 on the CPU, got {tensor.dtype} on {tensor.device}")
    fits = x.dim() == weight.dim() == 2 and x.shape[1] == weight.shape[1]
    if not fits or (norm is not None and norm.shape != x.shape[1:]):
        raise ValueError(
            f"x [R, in], weight [out, in] and norm [in] have one in, got {tuple(x.shape)}, "
            f"{tuple(weight.shape)}, {None if norm is None else tuple(norm.shape)}"
        )
    x, weight = x.contiguous(), weight.contiguous()
    norm = None if norm is None else norm.contiguous()
    out = torch.empty(x.shape[0], weight.shape[0])
    sizes = (*x.shape, weight.shape[0], eps, torch.get_num_threads())
    address = None if norm is None else norm.data_ptr()
    _call()(x.data_ptr(), address, weight.data_ptr(), out.data_ptr(), *sizes)
    return out


@cache
def _call() -> Callable[..., None]:
    """The kernel as a function of addresses, looked up once."""
    call = library(SOURCE).kvlib_few_rows
    call.argtypes = [*[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 3, ctypes.c_float, ctypes.c_int]
    call.restype = None
    return call
