"""Every cache and every way to attend, and a text of one layer to run through them."""

import torch

from exact_caches import EXACT
from kvlib.sizes import KVShape
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.sink_window import RollingKVCache, SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache
from kvlib.tensors.top_blocks import TopBlocksKVCache
from public_cases_attention import paged_ways

DIM = 32
SHAPE = KVShape(num_layers=1, num_kv_heads=2, head_dim=DIM)
HALVES = (torch.float16, torch.bfloat16)
FORGETFUL = {
    "rolling": lambda n, **o: RollingKVCache(SHAPE, 2, n, **o),
    "sinks": lambda n, **o: SinkWindowKVCache(SHAPE, 2, 2, n, **o),
    "heavy hitters": lambda n, **o: HeavyHitterKVCache(SHAPE, 2, n, recent=1, **o),
    "snap": lambda n, **o: SnapKVCache(SHAPE, 2, n, observe=1, kernel=1, room=n, **o),
    "top blocks": lambda n, **o: TopBlocksKVCache(SHAPE, n, 4, top_k=n, **o),
}
CACHES = {
    **{
        name: lambda n, make=make, **o: make(SHAPE, max_seq_len=n, **o)
        for name, make in EXACT.items()
    },
    **FORGETFUL,
    **{
        f"paged, {way}": lambda n, way=way, **o: PagedKVCache(SHAPE, n, 16, way=way, **o)
        for way in paged_ways(shape=SHAPE)
    },
}


def run(cache, k, v, q, chunks, seq_id="a"):
    """Stores and attends to a text in chunks, in one layer; returns all outputs."""
    cache.add(seq_id)
    outs, start = [], 0
    for size in chunks:
        rows = slice(start, start + size)
        with cache.step({seq_id: [0] * size}) as plan:
            cache.write(0, k[rows], v[rows], plan)
            outs.append(cache.attend(0, q[rows], plan))
        start += size
    return torch.cat(outs)


def text(num_tokens, seed=0, loud=1.0, dtype=torch.float32):
    """Keys, values and queries; `loud` makes keys and queries larger."""
    made = torch.Generator().manual_seed(seed)
    k, v, q = (torch.randn(num_tokens, heads, DIM, generator=made) for heads in (2, 2, 4))
    return (loud * k).to(dtype), v.to(dtype), (loud * q).to(dtype)
