"""Times one decode step's attention in one process and in two: measure/sharded_speed.py.

Both ranks hold the same sequences, once whole and once cut by heads and by tokens. In turns, the
first rank attends alone while the second waits, and both attend together. `wire` exchanges parts of
the same size and attends to nothing: what the exchange alone costs. Every way goes through all
layers, so that long caches do not stay in the processor's caches from one round to the next.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from kvlib.sharding import wire_bytes_by_heads, wire_bytes_by_tokens
from kvlib.sizes import KVShape
from kvlib.tensors.distributed import Ranks
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.processes import run_ranks
from kvlib.tensors.workers import SHARDED
from record import rounds, spread, times_faster, write

LAYERS = 4
HEADS = {"small": (9, 3, 64, 2), "large": (32, 8, 128, 4)}  # query and KV heads, size, sequences
POINTS = (("small", 256), ("small", 1024), ("small", 4096), ("small", 16384))
POINTS += (("large", 256), ("large", 1024), ("large", 4096))
REPEATS = 15


def step(cache: PagedKVCache, context: int, batch: int, num_kv: int, dim: int) -> Callable:
    """Fills a cache with random tokens, opens a decode step, and returns its attention."""
    generator = torch.Generator().manual_seed(0)
    names = range(batch)
    for name in names:
        cache.add(name)
    for new in (context - 1, 1):
        plan = cache.plan({name: range(new) for name in names})
        for layer in range(LAYERS):
            k, v = torch.randn(2, new * batch, num_kv, dim, generator=generator)
            cache.write(layer, k, v, plan)
        if new > 1:
            cache.commit(plan)

    def attend(q: Tensor) -> None:
        for layer in range(LAYERS):
            cache.attend(layer, q, plan)

    return attend


def row(ranks: Ranks, size: str, context: int) -> dict[str, object]:
    """Times one setting; the first rank's numbers count."""
    num_q, num_kv, dim, batch = HEADS[size]
    shape = KVShape(LAYERS, num_kv, dim)
    q = torch.randn(batch, num_q, dim, generator=torch.Generator().manual_seed(1))
    fits = -(-context // 16) * batch
    ways = {"one": lambda: None}
    if ranks.rank == 0:
        alone = step(PagedKVCache(shape, fits), context, batch, num_kv, dim)
        ways["one"] = lambda: alone(q)
    at_rest = {}
    for by, kind in SHARDED.items():
        cache = kind(shape, fits if by == "heads" else fits // 2 + batch, ranks=ranks)
        together = step(cache, context, batch, num_kv, dim)
        ways[by] = lambda attend=together: attend(q)
        at_rest[by] = cache.nbytes
    sent = {
        "heads": wire_bytes_by_heads(batch, num_q, num_kv, dim, 2, itemsize=4),
        "tokens": wire_bytes_by_tokens(batch, num_q, dim, 2),
    }
    for by, num_bytes in sent.items():
        part = torch.zeros(num_bytes // 4)
        ways[f"{by}_wire"] = lambda p=part: [ranks.gather(p) for _ in range(LAYERS)]
    meet = dict.fromkeys(ways, lambda: ranks.agree("a round", "now"))
    times = rounds(ways, REPEATS, before=meet)
    return {
        "size": size,
        "heads": [num_q, num_kv, dim],
        "batch": batch,
        "context": context,
        "layer_kv_bytes": 2 * batch * context * num_kv * dim * 4,
        "nbytes": at_rest,
        "wire_bytes_per_layer": sent,
        "layer_s": {name: spread([s / LAYERS for s in taken]) for name, taken in times.items()},
        "times_faster_than_one": {by: times_faster(times["one"], times[by]) for by in SHARDED},
        "wire_share": {by: times_faster(times[f"{by}_wire"], times[by]) for by in SHARDED},
    }


def rows(ranks: Ranks) -> list[dict[str, object]]:
    """Returns all rows, as this rank measured them."""
    return [row(ranks, *point) for point in POINTS]


def main() -> None:
    """Writes the record `sharded_speed.cpu`."""
    torch.set_num_threads(1)
    data = run_ranks(rows, 2, peer_s=120.0, whole_s=1200.0)[0]
    for each in data:
        print(each["size"], each["context"], each["times_faster_than_one"], file=sys.stderr)
    code = ("distributed", "head_sharded", "seen_attention", "sequence_sharded", "shard_plan")
    files = [f"kvlib/tensors/{name}.py" for name in code]
    place = {"processes": 2, "threads_each": 1, "cores": os.cpu_count(), "transport": "gloo, TCP"}
    data = {**place, "layers": LAYERS, "repeats": REPEATS, "rows": data}
    write("sharded_speed", data, (*files, "measure/sharded_speed.py"), torch.device("cpu"))


if __name__ == "__main__":
    main()
