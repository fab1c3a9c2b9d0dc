"""One row for each technique of chapter 4's second half: python measure/techniques.py.

Every cache reads the same text and the same needles, through the same interface: bytes saved, error
of the logits, perplexity, needles found, time of a step, and where it loses.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import kvlib
from kvlib.precision import Precision
from kvlib.tensors.block_files import BlockFiles
from kvlib.tensors.distributed import Ranks
from kvlib.tensors.head_sharded import HeadShardedKVCache
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.llama import Llama
from kvlib.tensors.processes import run_ranks
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.sequence_sharded import SequenceShardedKVCache
from kvlib.tensors.sink_window import SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache
from kvlib.tensors.step import CacheBase
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tensors.tokenizer import Tokenizer
from kvlib.tensors.top_blocks import TopBlocksKVCache
from kvlib.tiers import Tier
from needle import needle_accuracy
from record import ROOT, rounds, spread, times_faster, write

BLOCK, BUDGET, NEEDLE_TOKENS, SEEDS = 16, 128, 512, range(3)
HELD = NEEDLE_TOKENS + BLOCK  # with room for the answer
PROMPT = 256  # read in one step; the rest of the text comes token by token, and is scored
TIMED_CONTEXT, REPEATS = 2048, 9
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


@torch.inference_mode()
def logits_of(model: Llama, cache: CacheBase, tokens: list[int], row: Technique) -> Tensor:
    """Returns the logits after tokens `PROMPT - 1`, `PROMPT`, ... of a text, read one by one."""
    cache.add("text")
    found = []
    for start, end in [(0, PROMPT), *((i, i + 1) for i in range(PROMPT, len(tokens) - 1))]:
        with cache.step({"text": tokens[start:end]}) as plan:
            new = torch.tensor(tokens[start:end], device=model.device)
            found.append(model(new, cache, plan)[0])
        if not start:
            row.move(cache)
    cache.free("text")
    return torch.stack(found).float().cpu()


def quality(
    model: Llama, tokens: list[int], cache: CacheBase, row: Technique, exact: Tensor | None
) -> tuple[dict[str, object], Tensor]:
    """Returns perplexity, error against the exact logits, and the logits themselves."""
    logits = logits_of(model, cache, tokens, row)
    loss = cross_entropy(logits, torch.tensor(tokens[PROMPT:]))
    exact = logits if exact is None else exact
    return {
        "perplexity": float(f"{loss.double().exp():.4g}"),
        "max_logit_error": float(f"{(logits - exact).abs().max():.2g}"),
        "other_tokens": int((logits.argmax(1) != exact.argmax(1)).sum()),
        "scored": len(logits),
    }, logits


def saved(model: Llama, row: Technique, cache: CacheBase) -> dict[str, object]:
    """Returns the bytes allocated for a text of `HELD` tokens, and the share saved of 16 bits."""
    full = paged(model, HELD).nbytes
    per_16_bit = full if row.bits == 16 else full / 2
    share = round(1 - cache.nbytes / per_16_bit, 3)
    return {"nbytes": cache.nbytes, "saved": 1.0 if row.name == "two tiers" else share}


def step_times(model: Llama, caches: dict[str, CacheBase], context: int, repeats: int) -> dict:
    """Times one token's step after `context` tokens with each cache, in turns, the exact first."""
    tokens = [(7 * i) % 4000 for i in range(context)]

    def forward(cache: CacheBase, new: list[int]) -> None:
        with cache.step({"text": new}) as plan:
            model(torch.tensor(new, device=model.device), cache, plan)

    for cache in caches.values():
        cache.add("text")
        forward(cache, tokens)
    ways = {name: lambda cache=cache: forward(cache, [1]) for name, cache in caches.items()}
    times = rounds(ways, repeats)
    exact = next(iter(times.values()))
    return {
        name: {"step_s": spread(seconds), "times_exact": times_faster(seconds, exact)}
        for name, seconds in times.items()
    }


def over_ranks(ranks: Ranks, by: str, tokens: list[int], repeats: int) -> dict[str, object]:
    """Returns the row of a cache that is cut over the ranks; every rank calls it."""
    kinds = {"heads": HeadShardedKVCache, "tokens": SequenceShardedKVCache}
    model, tokenizer = kvlib.load_model()
    model.one_call = False

    def new_cache(model: Llama, num_tokens: int) -> CacheBase:
        parts = ranks.size if by == "tokens" else 1
        blocks = -(-num_tokens // (BLOCK * parts)) + 1
        return kinds[by](model.kv_shape, blocks, BLOCK, ranks=ranks)

    losses = {"heads": "a message a layer; heads that do not divide", "tokens": "a message a layer"}
    row = Technique(f"{by} over {ranks.size} ranks", new_cache, losses[by])
    _, exact = quality(model, tokens, paged(model, len(tokens)), row, None)
    mine = new_cache(model, HELD)
    return (
        finish(row, model, tokenizer, tokens, mine, exact)
        | step_times(
            model,
            {"exact": paged(model, 3000), row.name: new_cache(model, 3000)},
            TIMED_CONTEXT,
            repeats,
        )[row.name]
    )


def finish(
    row: Technique,
    model: Llama,
    tokenizer: Tokenizer,
    tokens: list[int],
    cache: CacheBase,
    exact: Tensor,
) -> dict[str, object]:
    """Returns a row but for its time."""
    found, _ = quality(model, tokens, row.new_cache(model, len(tokens)), row, exact)
    needles = {
        f"needle_{when}": round(
            needle_accuracy(
                model,
                tokenizer,
                lambda model: row.new_cache(model, HELD),
                NEEDLE_TOKENS,
                asked_later=later,
                seeds=SEEDS,
                between=row.move,
            ),
            3,
        )
        for when, later in (("asked_with_it", False), ("asked_later", True))
    }
    what = {"technique": row.name, "lossy": cache.lossy, "loses": row.loses}
    return what | saved(model, row, cache) | found | needles


def main() -> None:
    """Writes the record `techniques.<device>`."""
    torch.set_num_threads(1)
    device = kvlib.device()
    model, tokenizer = kvlib.load_model(device=device)
    model.one_call = False  # every row goes layer by layer: only an exact paged cache need not
    text = (files("kvlib") / "data" / "passage.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text.strip())
    repeats = 2 if "--quick" in sys.argv else REPEATS
    with TemporaryDirectory() as folder, torch.inference_mode():
        rows, every = [], techniques(folder)
        _, exact = quality(model, tokens, paged(model, len(tokens)), every[0], None)
        for row in every:
            cache = row.new_cache(model, HELD)
            rows.append(finish(row, model, tokenizer, tokens, cache, exact))
            print(rows[-1], flush=True)
        caches = {row.name: row.new_cache(model, 3000) for row in every}
        times = step_times(model, caches, TIMED_CONTEXT, repeats)
    rows = [row | times[row["technique"]] for row in rows]
    if device.type == "cpu":
        rows += [run_ranks(over_ranks, 2, by, tokens, repeats)[0] for by in ("heads", "tokens")]
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "text": f"kvlib/data/passage.txt, {len(tokens)} tokens, those after {PROMPT} scored",
        "needle_tokens": NEEDLE_TOKENS,
        "budget_tokens": BUDGET,
        "timed_context": TIMED_CONTEXT,
        "rows": rows,
    }
    write("techniques", data, code(), device)
    if device.type == "cpu" and not os.environ.get("KVLIB_RECORDS"):
        keep_for_the_drawing(rows, rows[0]["perplexity"])


def keep_for_the_drawing(rows: list[dict[str, object]], exact: float) -> None:
    """Leaves what the page's drawing shows where it finds it in a reader's browser."""
    shown = ("technique", "saved", "needle_asked_later")
    kept = [
        {name: row[name] for name in shown}
        | {"perplexity_ratio": round(row["perplexity"] / exact, 4)}
        for row in rows
    ]
    target = ROOT / "kvlib" / "data" / "techniques.json"
    data = {"record": "techniques.cpu", "rows": kept}
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def code() -> tuple[str, ...]:
    """Returns the files whose results these are."""
    tensors = (
        *("head_sharded", "heavy_hitters", "paged", "paged_attention", "per_head"),
        *("quantized", "sequence_sharded", "sink_window", "snap", "tiered", "top_blocks"),
    )
    own = ("measure/needle.py", "measure/techniques.py", "kvlib/data/passage.txt")
    return (*(f"kvlib/tensors/{name}.py" for name in tensors), *own)


if __name__ == "__main__":
    main()
