"""A step of few tokens on a paged cache, all layers in one call: the fast path of `Llama` on a CPU.

Layer by layer, a decode step asks torch for some fifty small things, thirty times. Each takes some
microseconds, and more than in a loop of its own, because a layer's weights came through the
processor's caches since. The kernel goes from layer to layer without coming back. Its numbers are
those of the layers that are written to be read, up to rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kvlib.tensors.caches import SlotCache
from kvlib.tensors.kernels import few_rows, paged_cpu
from kvlib.tensors.kernels.rows import addresses
from kvlib.tensors.paged import PagedKVCache, PagedPlan

if TYPE_CHECKING:
    from kvlib.tensors.llama import Llama


def takes(x: Tensor, cache: object) -> bool:
    """Answers whether a step can run so: few float32 rows, a paged cache with the CPU kernel.

    A cache that writes or attends in a way of its own is asked layer by layer.
    """
    kind = type(cache)
    if not (isinstance(cache, PagedKVCache) and cache.way == "cpu" and few_rows.takes(x)):
        return False
    own = kind.write is SlotCache.write and kind.attend is PagedKVCache.attend
    return own and not vars(cache).keys() & {"write", "attend"}


def all_layers(
    model: Llama, x: Tensor, cos: Tensor, sin: Tensor, cache: PagedKVCache, plan: PagedPlan
) -> Tensor:
    """Returns what all layers make of a step's embeddings; writes keys and values on the way.

    Args:
        model: its layers are used; hooks of modules inside them are not called.
        x: [T, hidden_size], for which `takes` said yes; it is overwritten.
        cos: [T, 1, D / 2].
        sin: [T, 1, D / 2].
        cache: gets the new keys and values.
        plan: its open plan.

    Raises:
        ValueError: the plan is not open, or a weight or the cache does not fit the model.
    """
    cache.ledger.require_open(plan.host)
    _require_fit(model, x, cache)
    weights = list(chain.from_iterable(map(_weights, model.model.layers)))
    _check(weights, model)
    step = _step(model, x, cos, sin, cache, plan, weights)
    if _call()(ctypes.byref(step)):
        num_blocks = cache.store.keys.shape[1]
        raise ValueError(f"a row sees positions without a block: there are {num_blocks} blocks")
    cache.note_written(plan)
    cache.count_layers(plan)
    return x


def _require_fit(model: Llama, x: Tensor, cache: PagedKVCache) -> None:
    c, keys, values = model.config, cache.store.keys, cache.store.values
    fits = (len(keys), keys.shape[2], keys.shape[4]) == (c.num_layers, c.num_kv_heads, c.head_dim)
    if not fits or keys.dtype != x.dtype or keys.stride(4) != 1 or keys.stride() != values.stride():
        raise ValueError(
            f"the model has {c.num_layers} layers of {c.num_kv_heads} KV heads of {c.head_dim},"
            f" {x.dtype}, the cache is {tuple(keys.shape)} {keys.dtype}"
        )


def _step(
    model: Llama,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: PagedKVCache,
    plan: PagedPlan,
    weights: list[Tensor],
) -> _Layers:
    """What the kernel is told: addresses, and sizes."""
    c, keys = model.config, cache.store.keys
    table, rows = plan.context.block_table, plan.context.rows_of(cache.ledger.window)
    return _Layers(
        x.data_ptr(),
        (ctypes.c_void_p * len(weights))(*[weight.data_ptr() for weight in weights]),
        *(each.data_ptr() for each in (cos, sin, keys, cache.store.values, plan.slot_mapping)),
        _attend(x.dtype, c.head_dim, c.num_q_heads // c.num_kv_heads),
        table.data_ptr(),
        *addresses(rows),
        paged_cpu.sizes_of(len(x), c.num_q_heads, keys[0], table),
        *(c.num_layers, keys.stride(0), c.hidden_size, c.intermediate_size),
        *(c.rms_norm_eps, c.head_dim**-0.5, torch.get_num_threads()),
    )


def _weights(layer: nn.Module) -> tuple[Tensor, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    return (
        attention.q_proj.weight,
        attention.k_proj.weight,
        attention.v_proj.weight,
        attention.o_proj.weight,
        mlp.gate_proj.weight,
        mlp.up_proj.weight,
        mlp.down_proj.weight,
        layer.input_layernorm.weight,
        layer.post_attention_layernorm.weight,
    )


def _check(weights: list[Tensor], model: Llama) -> None:
    c = model.config
    q_size, kv_size = c.num_q_heads * c.head_dim, c.num_kv_heads * c.head_dim
    hidden, inner = c.hidden_size, c.intermediate_size
    sizes = [q_size, kv_size, kv_size, q_size, inner, inner, inner]
    wanted = [*(n * hidden for n in sizes), hidden, hidden]
    for weight, numbers in zip(weights, wanted * c.num_layers, strict=True):
        whole = weight.is_contiguous() and weight.is_cpu and weight.dtype is torch.float32
        if not whole or weight.numel() != numbers:
            raise ValueError(
                f"weights lie in one run of float32 on the CPU, here {numbers} numbers, got "
                f"{tuple(weight.shape)} {weight.dtype} on {weight.device}"
            )


class _Layers(ctypes.Structure):
    """`Layers` of few_rows.cpp."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weights", ctypes.POINTER(ctypes.c_void_p)),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("attend", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("row_seq", ctypes.c_void_p),
        ("row_first", ctypes.c_void_p),
        ("row_end", ctypes.c_void_p),
        ("attend_sizes", paged_cpu.Sizes),
        ("layers", ctypes.c_int64),
        ("layer_stride", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int32),
    )


@cache
def _attend(dtype: torch.dtype, head_dim: int, group: int) -> int:
    """The address of the attention kernel for these sizes."""
    kernel = paged_cpu.kernel(dtype, head_dim, group).kvlib_paged_attention
    return ctypes.cast(kernel, ctypes.c_void_p).value


@cache
def _call() -> Callable[..., int]:
    call = few_rows.library(few_rows.SOURCE).kvlib_all_layers
    call.argtypes = [ctypes.POINTER(_Layers)]
    return call
