"""What holds a text in each row of `techniques.py`: a way to make its cache, and where it loses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kvlib
from kvlib.precision import Precision
from kvlib.tensors.block_files import BlockFiles
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.llama import Llama
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.sink_window import SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache
from kvlib.tensors.step import CacheBase
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tensors.top_blocks import TopBlocksKVCache
from kvlib.tier import Tier

BLOCK, BUDGET = 16, 128
CHANNEL4, TOKEN4 = Precision(4, along="channel"), Precision(4, group_size=32)
CHANNEL2, TOKEN2 = Precision(2, along="channel"), Precision(2, group_size=32)
NewCache = Callable[[Llama, int], CacheBase]


@dataclass(frozen=True)
class Technique:
    """A way to hold a text.

    Attributes:
        name: as the table has it.
        new_cache: makes an empty cache for one text of so many tokens.
        loses: where it loses, in a few words.
        bits: what an element of the cache stands for; the caches in float32 stand for 16-bit ones
            of the same tokens, which is what the saving is counted against.
        move: what is done to the text `"text"` between its prompt and its first new token.
    """

    name: str
    new_cache: NewCache
    loses: str
    bits: int = 16
    move: Callable[[Any], object] = lambda cache: None


def paged(model: Llama, num_tokens: int) -> CacheBase:
    """Returns the cache that every other is compared with: exact, float32."""
    blocks = -(-num_tokens // BLOCK)
    return kvlib.PagedKVCache(model.kv_shape, blocks, BLOCK, device=model.device)


def quantized(keys: Precision, values: Precision) -> NewCache:
    """Returns what makes caches with keys and values in these formats."""

    def new_cache(model: Llama, num_tokens: int) -> CacheBase:
        blocks, options = -(-num_tokens // BLOCK), {"keys": keys, "values": values, "num_seqs": 1}
        return QuantizedKVCache(model.kv_shape, blocks, BLOCK, device=model.device, **options)

    return new_cache


def of_budget(cache: type, *sizes: int) -> NewCache:
    """Returns what makes lossy caches of one row with these sizes."""
    return lambda model, num_tokens: cache(model.kv_shape, 1, *sizes, device=model.device)


def snap(model: Llama, num_tokens: int) -> CacheBase:
    """Returns a cache that cuts a prompt to `BUDGET` tokens, with room for a short answer.

    Its sizes are those that our needles ask for (`eviction_quality.py`): with the authors' it finds
    none of them.
    """
    return SnapKVCache(
        model.kv_shape, 1, BUDGET, observe=8, kernel=13, room=BLOCK, device=model.device
    )


def top_blocks(model: Llama, num_tokens: int) -> CacheBase:
    """Returns a cache that reads `BUDGET` tokens' blocks at a step and keeps all."""
    blocks, few = -(-num_tokens // BLOCK), BUDGET // BLOCK
    return TopBlocksKVCache(model.kv_shape, blocks, BLOCK, top_k=few, device=model.device)


def tiered(folder: str) -> NewCache:
    """Returns what makes caches with host memory and files below the device."""

    def new_cache(model: Llama, num_tokens: int) -> CacheBase:
        shape, blocks = model.kv_shape, -(-num_tokens // BLOCK)
        block_bytes = BLOCK * shape.bytes_per_token("float32")
        tiers = [
            (Tier("host", 2 * blocks * block_bytes, 20), HostBlocks()),
            (Tier("disk", 2 * blocks * block_bytes, 2), BlockFiles(folder)),
        ]
        return TieredKVCache(shape, blocks, BLOCK, tiers=tiers, device=model.device)

    return new_cache


def through_the_tiers(cache: TieredKVCache) -> None:
    """Sends the text down and brings it back."""
    cache.swap_out("text")
    cache.swap_in("text")


def techniques(folder: str) -> list[Technique]:
    """Returns the rows of the table that one process can run, the exact cache first."""
    token8, fp8 = Precision(8), Precision(kind="fp8")
    late = "all text before the last tokens"
    return [
        Technique("paged, exact", paged, "nothing is smaller"),
        Technique("int8", quantized(token8, token8), "at most half", 8),
        Technique("fp8", quantized(fp8, fp8), "coarser than int8 at equal bytes", 8),
        Technique("int4, by token", quantized(TOKEN4, TOKEN4), "keys' outliers", 4),
        Technique("int4, K by channel", quantized(CHANNEL4, TOKEN4), "the last block waits", 4),
        Technique("int2, K by channel", quantized(CHANNEL2, TOKEN2), "visible in the text", 2),
        Technique("window", of_budget(kvlib.RollingKVCache, BUDGET), f"{late}, and the sinks"),
        Technique("sinks + window", of_budget(SinkWindowKVCache, 4, BUDGET - 4), late),
        Technique(
            "heavy hitters",
            of_budget(HeavyHitterKVCache, BUDGET, BUDGET // 2),
            "what is asked for late; no fused kernel",
        ),
        Technique("SnapKV", snap, "a question that comes later; long answers"),
        Technique("top blocks", top_blocks, "memory: none saved; short texts"),
        Technique("two tiers", tiered(folder), "short texts, slow links", move=through_the_tiers),
    ]
