"""The rows of chapter 4's table of structures, counted; `structures.py` writes them down.

One interface for all: what a decode step appends, reads and copies, in units of one token's keys
and values in one layer; what is allocated for the same requests; what a fork copies; with how many
different shapes a step runs; lines of code; the error of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kvlib.sizes import KVShape
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.sink_window import RollingKVCache, SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache
from kvlib.tensors.top_blocks import TopBlocksKVCache
from kvlib.workloads import sample
from structure_lines import lines_of
from structure_shapes import shapes_of, waits

BLOCK_SIZE, BUDGET = 16, 128
TOP_K = BUDGET // BLOCK_SIZE
SEEDS = range(5)
CONTEXT, STEPS = 464, 16  # one block's worth of decode steps

Make = Callable[..., Any]


def makers(shape: KVShape, num_seqs: int, max_seq_len: int, **place: Any) -> dict[str, Make]:
    """Returns for each structure a call that allocates it, by its name in the table."""
    num_blocks = num_seqs * -(-max_seq_len // BLOCK_SIZE)

    def paged(num_blocks: int = num_blocks, **options: Any) -> PagedKVCache:
        return PagedKVCache(shape, num_blocks, BLOCK_SIZE, **options, **place)

    def top(num_blocks: int = num_blocks, **options: Any) -> TopBlocksKVCache:
        few = {"top_k": TOP_K, **options, **place}
        return TopBlocksKVCache(shape, num_blocks, BLOCK_SIZE, **few)

    return {
        "contiguous": lambda: ContiguousKVCache(shape, num_seqs, max_seq_len, **place),
        "blocked": paged,
        "newest only": lambda: RollingKVCache(shape, num_seqs, BUDGET, **place),
        "first and newest": lambda: SinkWindowKVCache(shape, num_seqs, 4, BUDGET - 4, **place),
        "heavy hitters": lambda: HeavyHitterKVCache(shape, num_seqs, BUDGET, 64, **place),
        "prompt picked": lambda room=64: SnapKVCache(shape, num_seqs, BUDGET, room=room, **place),
        "reads few blocks": top,
    }


def step(cache: Any, new: dict[str, int], num_q_heads: int, *, attend: bool = True) -> None:
    """Runs the cache's part of one step with random numbers, all layers."""
    num_layers, _, num_kv_heads, _, head_dim = cache.store.keys.shape
    total, place = sum(new.values()), {"device": cache.device}
    with cache.step({seq_id: [0] * n for seq_id, n in new.items()}) as plan:
        for layer in range(num_layers):
            k, v = torch.randn(2, total, num_kv_heads, head_dim, **place)
            cache.write(layer, k, v, plan)
            if attend:
                cache.attend(layer, torch.randn(total, num_q_heads, head_dim, **place), plan)


def traffic(make: Make) -> dict[str, float]:
    """Returns what a decode step writes, reads and copies at the context, per step, in tokens."""
    cache = make()
    cache.add("a")
    step(cache, {"a": CONTEXT}, 9)
    before = cache.counters.snapshot()
    for _ in range(STEPS):
        step(cache, {"a": 1}, 9)
    work = cache.counters.since(before)
    names = ("written", "read", "copied")
    moved = (work.bytes_written, work.bytes_read, work.bytes_copied)
    unit = 2 * cache.store.keys[0, 0, :, 0].nbytes * STEPS
    return {name: round(each / unit, 2) for name, each in zip(names, moved, strict=True)}


def forked(make: Make) -> float | None:
    """Returns how many tokens' bytes a fork at the context and its next step copy; None: none."""
    cache = make()
    if not hasattr(cache, "fork"):
        return None
    cache.add("a")
    step(cache, {"a": CONTEXT + 8}, 9)
    before = cache.counters.bytes_copied
    cache.fork("a", "b")
    step(cache, {"b": 1}, 9)
    return (cache.counters.bytes_copied - before) / (2 * cache.store.keys[0, 0, :, 0].nbytes)


def allocation(name: str) -> dict[str, list[float]]:
    """Returns for each seed the bytes allocated for 32 requests at their final length.

    As a multiple of all their tokens' bytes, and the share of it that holds no token.
    """
    shape, allocated, empty = KVShape(1, 1, 64), [], []
    for seed in SEEDS:
        requests = sample("azure-conv", 32, seed).requests
        lens = [r.prompt_tokens + r.output_tokens for r in requests]
        held, options = lens, {}
        if name in ("blocked", "reads few blocks"):
            options["num_blocks"] = sum(-(-n // BLOCK_SIZE) for n in lens)
        elif name == "prompt picked":
            options["room"] = max(r.output_tokens for r in requests)
            held = [min(r.prompt_tokens, BUDGET) + r.output_tokens for r in requests]
        elif name != "contiguous":
            held = [min(n, BUDGET) for n in lens]
        cache = makers(shape, 32, max(lens))[name](**options)
        per_token = 2 * cache.store.keys[0, 0, :, 0].nbytes
        allocated.append(round(cache.nbytes / (sum(lens) * per_token), 3))
        empty.append(round(1 - sum(held) * per_token / cache.nbytes, 3))
    return {"allocated": allocated, "empty": empty}


def logit_error(model: Llama, tokens: Sequence[int], make: Make, exact: Tensor) -> float:
    """Returns the largest difference of the logits over eight decode steps after a prompt."""
    cache, start, worst = make(), len(tokens) - 8, 0.0
    cache.add("a")
    with torch.no_grad():
        for new in (tokens[:start], *([token] for token in tokens[start:])):
            with cache.step({"a": new}) as plan:
                logits = model(torch.tensor(new, device=model.device), cache, plan)[0]
            at = cache.length("a") - 1
            if at >= start:
                worst = max(worst, (logits - exact[at]).abs().max().item())
    return float(f"{worst:.2g}")


def table(model: Llama, tokens: Sequence[int], exact: Tensor) -> dict[str, dict[str, Any]]:
    """Returns the rows of the table, by structure."""
    layer, place = KVShape(1, 3, 64), {"device": model.device}
    counted = makers(layer, 2, 512)
    shaped = makers(layer, 1, 1024)
    real = makers(model.kv_shape, 1, 512, **place)
    rows = {}
    for name in counted:
        pads = name in ("blocked", "reads few blocks")
        rows[name] = {
            **traffic(counted[name]),
            **allocation(name),
            "fork_copies": forked(counted[name]),
            "shapes": shapes_of(shaped[name], CONTEXT, fixed=False),
            "shapes_padded": shapes_of(shaped[name], CONTEXT, fixed=True) if pads else None,
            "waits": waits(lambda shape, on, n=name: makers(shape, 1, 512, device=on)[n]()),
            "lines": lines_of(name),
            "logit_error": logit_error(model, tokens, real[name], exact),
        }
        print(name, flush=True)
    return rows
