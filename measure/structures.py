"""Contiguous, blocked, sparse: the outline's missing table, python measure/structures.py.

The table's rows are those of `structure_table.py`. Beside them what reading few blocks costs on the
real model, by rule, by block size, by how many; see `few_blocks.py`. Only `seconds` is a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

import kvlib
from few_blocks import FewBlocks, compared, read_text
from kvlib.sizes import KVShape
from kvlib.tensors.llama import Llama
from record import ROOT, rounds, spread, times_faster, write
from structure_lines import SOURCES
from structure_table import BLOCK_SIZE, BUDGET, CONTEXT, STEPS, makers, step, table

LENGTHS = (512, 4096, 32768)
TEXTS = ("kvlib/catalog.py", "kvlib/roofline.py")


def seconds(device: torch.device) -> dict[str, Any]:
    """Returns the time of one layer's part of a decode step by structure and context."""
    result: dict[str, Any] = {"lengths": list(LENGTHS)}
    for length in LENGTHS:
        made = makers(KVShape(1, 3, 64), 1, length + 256, device=device)
        caches = {
            n: made[n]() for n in ("contiguous", "blocked", "newest only", "reads few blocks")
        }
        for cache in caches.values():
            cache.add("a")
            for start in range(0, length, 2048):
                step(cache, {"a": min(2048, length - start)}, 9, attend=False)
        times = rounds({n: lambda c=c: _waited(c, device) for n, c in caches.items()}, 101)
        for name, each in times.items():
            row = result.setdefault(name, {"spread": [], "times_faster_than_blocked": []})
            row["spread"].append(spread(each))
            row["times_faster_than_blocked"].append(times_faster(times["blocked"], each))
    return result


def _waited(cache: Any, device: torch.device) -> None:
    step(cache, {"a": 1}, 9)
    if device.type == "cuda":
        torch.cuda.synchronize()


def sweeps(model: Llama, passage: Sequence[int], exact: Tensor) -> dict[str, Any]:
    """Returns what reading few blocks costs: by rule and number, by block size, and variants."""
    half = len(passage) // 2

    def few(size: int, top_k: int, rule: str = "bound", **options: int) -> dict[str, float]:
        cache = FewBlocks(size, top_k, rule, exact_until=half, device=model.device, **options)
        row = {"block_size": size, "top_k": top_k, "rule": rule, **options}
        row |= compared(model, passage, cache, exact)
        print(row, flush=True)
        return row

    whole = FewBlocks(16, 99, exact_until=half, device=model.device)
    return {
        "exact": compared(model, passage, whole, exact)["perplexity"],
        "scored": len(passage) - 1 - half,
        "rules": [
            few(16, k, rule)
            for rule in ("bound", "average", "best key", "newest")
            for k in (2, 4, 8, 15)
        ],
        "sizes": [few(size, budget // size) for size in (4, 8, 32) for budget in (32, 64, 128)],
        "with_first": [
            few(16, k, rule, first_blocks=1)
            for rule in ("bound", "average", "newest")
            for k in (2, 4, 8, 15)
        ],
        "dense": few(16, 4, dense_layers=2),
    }


def other_texts(model: Llama, encode: Callable[[str], list[int]]) -> list[dict[str, Any]]:
    """Returns the rules side by side on source files of 768 tokens; all read the first block."""
    rows = []
    for name in TEXTS:
        tokens = encode((ROOT / name).read_text(encoding="utf-8"))[:768]
        exact = read_text(model, tokens, kvlib.NoCache(model.device))
        for rule in ("bound", "average", "newest"):
            cache = FewBlocks(16, 6, rule, exact_until=384, first_blocks=1, device=model.device)
            row = {"text": name, "rule": rule, "top_k": 6, **compared(model, tokens, cache, exact)}
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    """Writes the record `structures.<device>`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = kvlib.device()
    model, tokenizer = kvlib.load_model(device=device)
    passage = tokenizer.encode(
        (files("kvlib") / "data" / "passage.txt").read_text(encoding="utf-8").strip()
    )
    exact = read_text(model, passage, kvlib.NoCache(device))
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "text": f"kvlib/data/passage.txt, {len(passage)} tokens",
        "block_size": BLOCK_SIZE,
        "budget": BUDGET,
        "context": [CONTEXT, CONTEXT + STEPS],
        "table": table(model, passage, exact),
        "few": sweeps(model, passage, exact),
        "other_texts": other_texts(model, tokenizer.encode),
        "seconds": seconds(device),
    }
    code = {f"kvlib/{s.partition(':')[0]}" for each in SOURCES.values() for s in each}
    parts = ("structure_lines", "structure_shapes", "structure_table")
    scripts = ("few_blocks", *parts, "structures")
    own = (*(f"measure/{name}.py" for name in scripts), "kvlib/data/passage.txt", *TEXTS)
    write("structures", data, (*sorted(code), *own), device)


if __name__ == "__main__":
    sys.exit(main())
